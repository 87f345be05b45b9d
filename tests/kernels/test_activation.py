from __future__ import annotations

import numpy as np
import pytest
from kernel_arrays import DTYPES, assert_close, seen, stored

from pagoda.kernels import reference
from pagoda.kernels.cpu.activation import silu_mul


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "width"), [(1, 16), (3, 37), (4, 1536), (20, 80)])
def test_gate_is_that_of_the_reference(dtype: str, rows: int, width: int):
    rng = np.random.default_rng(rows)
    gate_up = stored(rng.normal(size=(rows, 2 * width)) * 6, dtype)
    out = np.empty((rows, width), gate_up.dtype)
    silu_mul(out, gate_up)
    assert_close(out, reference.silu_mul(seen(gate_up)), dtype)


def test_far_values_neither_overflow_nor_leave_their_limits():
    gate = np.array([[-1e30, -200, -88, -1e-30, 0, 1e-30, 88, 200, 1e30]], np.float32)
    out = np.empty_like(gate)
    silu_mul(out, np.concatenate((gate, np.ones_like(gate)), axis=1))
    expected = [[0, 0, 0, 0, 0, 0, 88, 200, 1e30]]
    assert np.allclose(out, expected, rtol=1e-6, atol=1e-29)
