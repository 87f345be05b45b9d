from __future__ import annotations

import numpy as np

from pagoda.kernels import reference
from pagoda.kernels.cpu.activation import silu


def test_silu_is_that_of_the_reference():
    x = np.random.default_rng(0).normal(size=500).astype(np.float32) * 6
    expected = reference.silu_mul(np.stack((x, np.ones_like(x)), axis=1))[:, 0]
    assert np.allclose([silu(value) for value in x], expected, rtol=1e-6, atol=1e-7)


def test_far_values_neither_overflow_nor_leave_their_limits():
    x = np.array([-1e30, -200, -88, -1e-30, 0, 1e-30, 88, 200, 1e30], np.float32)
    expected = [0, 0, 0, 0, 0, 0, 88, 200, 1e30]
    assert np.allclose([silu(value) for value in x], expected, rtol=1e-6, atol=1e-29)
