"""Launches of Triton's kernels, on a GPU or in the interpreter, and of PyTorch's."""

from __future__ import annotations

from typing import Any

import pytest
from torch.utils._python_dispatch import TorchDispatchMode
from triton.runtime.interpreter import GridExecutor
from triton.runtime.jit import JITFunction

from triton_device import HAS_GPU


def launcher() -> tuple[type, str]:
    """What launches a kernel: a class, and the name of its method."""
    return (JITFunction, "run") if HAS_GPU else (GridExecutor, "__call__")


def note_launches(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The names of the kernels that are launched from now on."""
    launched: set[str] = set()
    launch = getattr(*launcher())

    def note(kernel: Any, *args: object, **kwargs: object) -> object:
        launched.add(kernel.fn.__name__)
        return launch(kernel, *args, **kwargs)

    monkeypatch.setattr(*launcher(), note)
    return launched


class Operations(TorchDispatchMode):
    """Notes what PyTorch is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.names.add(str(function))
        return function(*args, **(kwargs or {}))
