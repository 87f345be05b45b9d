"""The type of an array that a kernel takes; its docstring says shape and dtype."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

Array = NDArray[Any]
