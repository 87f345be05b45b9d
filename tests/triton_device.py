"""Where Triton kernels run in tests: on a GPU where there is one, else in Triton's interpreter.

Importing this chooses, and has to come before the first import of triton: the functions of its
language are made for one or the other as they are loaded.
"""

from __future__ import annotations

import os
import sys
from functools import cache
from typing import Any

import torch

HAS_GPU = torch.cuda.is_available()

if not HAS_GPU and os.environ.get("TRITON_INTERPRET") != "1":
    if "triton.language" in sys.modules:
        raise RuntimeError("triton was imported before its interpreter was chosen")
    os.environ["TRITON_INTERPRET"] = "1"

DEVICE = torch.device("cuda" if HAS_GPU else "cpu")


def patch_once_a_launch() -> None:
    """Spare Triton's interpreter what it repeats at every call of a function within a kernel.

    Each time it looks through the whole language for what it replaces, although nothing has
    changed since the launch began, and for each value it makes its table of dtypes anew.
    """
    from triton.runtime import interpreter

    patch_lang: Any = interpreter._patch_lang
    modules: set[int] = set()  # by their globals: those whose language this launch has replaced

    def patch(function: Any) -> Any:
        if id(function.__globals__) in modules:
            return interpreter._LangPatchScope()
        begins = not modules
        modules.add(id(function.__globals__))
        scope = patch_lang(function)
        if begins:
            restore = scope.restore
            scope.restore = lambda: (modules.clear(), restore())
        return scope

    dtype_of: Any = interpreter._get_np_dtype
    scalar_dtype_of = cache(dtype_of)

    def numpy_dtype(kind: Any) -> Any:
        return dtype_of(kind) if kind.scalar.is_ptr() else scalar_dtype_of(kind.scalar)

    interpreter._patch_lang = patch
    interpreter._get_np_dtype = numpy_dtype


if not HAS_GPU:
    patch_once_a_launch()
