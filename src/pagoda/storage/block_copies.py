"""Copies of blocks on their way to the host, as a storage gives them.

Without PyTorch, whose import takes seconds, for those who only wait for them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from numpy.typing import NDArray


class BlockCopies(Protocol):
    """Of blocks, on their way to the host."""

    @property
    def is_done(self) -> bool:
        """All are there: `wait` returns at once."""
        ...

    def wait(self) -> Iterable[NDArray[Any]]:
        """Of each block [bytes of a block] uint8."""
        ...
