from __future__ import annotations

import numpy as np
import pytest
from kernel_arrays import DTYPES, assert_close, seen, stored

from pagoda.kernels import reference
from pagoda.kernels.cpu.norm import add_rms_norm, rms_norm


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "width"), [(1, 64), (3, 20), (7, 576), (8, 33), (40, 128)])
def test_norm_and_residual_sum_are_those_of_the_reference(dtype: str, rows: int, width: int):
    rng = np.random.default_rng(rows)
    x = rng.normal(size=(rows, width)).astype(np.float32) * 3
    weight = stored(rng.normal(size=width) + 1, dtype)
    delta = stored(rng.normal(size=(rows, width)), dtype)
    out = np.empty_like(delta)

    rms_norm(out, x, weight, np.float32(1e-5))
    assert_close(out, reference.rms_norm(x, seen(weight), 1e-5), dtype)

    total = x + seen(delta)
    add_rms_norm(out, x, delta, weight, np.float32(1e-5))
    assert np.array_equal(x, total)
    assert_close(out, reference.rms_norm(total, seen(weight), 1e-5), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_is_the_same_alone_and_among_others(dtype: str):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(30, 96)).astype(np.float32)
    weight = stored(rng.normal(size=96), dtype)
    together = stored(np.zeros((30, 96)), dtype)
    alone = np.empty_like(together)
    rms_norm(together, x, weight, np.float32(1e-6))
    for row in range(30):
        rms_norm(alone[row : row + 1], x[row : row + 1], weight, np.float32(1e-6))
    assert np.array_equal(together, alone)
