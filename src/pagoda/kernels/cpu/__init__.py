"""Kernels for CPUs, compiled by Numba."""

import numba

# OpenMP first: it lives well beside PyTorch's own OpenMP threads; workqueue was 2.5 times slower.
numba.config.THREADING_LAYER_PRIORITY = ["omp", "tbb", "workqueue"]  # type: ignore[attr-defined]
