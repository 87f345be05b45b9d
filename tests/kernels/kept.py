"""Functions of tests that are compiled, as kernels are: once, until a kernel changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import njit

from pagoda.kernels.cpu.fingerprint import fingerprinted


def kept(function: Callable[..., Any]) -> Any:
    """Compile it, or take it from disk. What it calls may be a part of kernels."""
    return njit(cache=True, error_model="numpy")(fingerprinted(function))


def kept_threads(function: Callable[..., Any]) -> Any:
    """Likewise; it shares out its loops among threads."""
    return njit(parallel=True, cache=True, error_model="numpy")(fingerprinted(function))
