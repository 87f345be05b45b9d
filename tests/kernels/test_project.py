from __future__ import annotations

import numpy as np
import pytest
from kernel_arrays import DTYPES, seen, stored

from pagoda.kernels import reference
from pagoda.kernels.cpu.project import project


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("rows", "width", "vocab_size"), [(1, 64, 300), (3, 33, 127), (17, 576, 128), (2, 16, 1)]
)
def test_logits_are_those_of_the_reference(dtype: str, rows: int, width: int, vocab_size: int):
    rng = np.random.default_rng(rows)
    x = rng.normal(size=(rows, width)).astype(np.float32)
    weight = stored(rng.normal(size=(vocab_size, width)), dtype)
    out = np.empty((rows, vocab_size), np.float32)
    project(out, x, weight)
    expected = reference.project(x, seen(weight))
    assert np.abs(out - expected).max() <= 2e-6 * max(1.0, np.abs(expected).max())


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_is_the_same_alone_and_among_others(dtype: str):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(9, 96)).astype(np.float32)
    weight = stored(rng.normal(size=(500, 96)), dtype)
    together = np.empty((9, 500), np.float32)
    project(together, x, weight)
    alone = np.empty_like(together)
    for row in range(9):
        project(alone[row : row + 1], x[row : row + 1], weight)
    assert np.array_equal(together, alone)
