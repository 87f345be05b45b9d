"""Functions of tests that are compiled, as kernels are: once, until a kernel changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import njit

from pagoda.kernels.cpu.fingerprint import fingerprinted
from pagoda.kernels.cpu.kept_code import keep


def kept(function: Callable[..., Any]) -> Any:
    """Compile it, or take it from disk. What it calls may be a part of kernels."""
    return keep(njit(error_model="numpy")(fingerprinted(function)), function)


def kept_threads(function: Callable[..., Any]) -> Any:
    """Likewise; it shares out its loops among threads."""
    compiled = njit(parallel=True, error_model="numpy")(fingerprinted(function))
    return keep(compiled, function)
