"""Kernels for CPUs, compiled by Numba."""

import numba

# OpenMP first: PyTorch keeps its threads in the same library, so that the two take turns on them.
numba.config.THREADING_LAYER_PRIORITY = ["omp", "tbb", "workqueue"]  # type: ignore[attr-defined]
