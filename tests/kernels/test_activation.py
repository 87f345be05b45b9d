from __future__ import annotations

import numpy as np
import pytest
from numba import njit

from pagoda.kernels import reference
from pagoda.kernels.cpu.activation import ACTIVATIONS, GATES


@pytest.mark.parametrize("name", GATES)
def test_a_gate_is_that_of_the_reference(name: str):
    x = np.random.default_rng(0).normal(size=500).astype(np.float32) * 6
    expected = reference.gated(np.stack((x, np.ones_like(x)), axis=1), name)[:, 0]
    gate = njit(GATES[name], error_model="numpy")
    found = [gate(value, np.float32(1)) for value in x]
    assert np.allclose(found, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_far_values_neither_overflow_nor_leave_their_limits(name: str):
    x = np.array([-1e12, -200, -88, -1e-30, 0, 1e-30, 88, 200, 1e12], np.float32)
    expected = [0, 0, 0, 0, 0, 0, 88, 200, 1e12]
    compiled = njit(ACTIVATIONS[name], error_model="numpy")
    assert np.allclose([compiled(value) for value in x], expected, rtol=1e-6, atol=1e-29)
