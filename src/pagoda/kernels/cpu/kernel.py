"""Kernels: compiled functions that Python calls, which share out their work among threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import njit

from pagoda.kernels.cpu.fingerprint import fingerprinted
from pagoda.kernels.cpu.kept_code import keep


def kernel(function: Callable[..., None]) -> Callable[..., Any]:
    """Compile a function when it is first called with arguments of new types, or take it from disk.

    It releases Python's lock and divides by zero as NumPy does.
    """
    compiled = njit(parallel=True, nogil=True, error_model="numpy")(fingerprinted(function))
    return keep(compiled, function)
