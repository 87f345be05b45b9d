from __future__ import annotations

import numpy as np
import pytest
import torch
from device_tensors import DEVICE, DTYPES, assert_near, random_tensor, wide
from hypothesis import given
from hypothesis import strategies as st

from pagoda.kernels import reference
from pagoda.kernels.gpu.norm import add_rms_norm, rms_norm

WIDTHS = st.one_of(st.integers(1, 70), st.sampled_from((128, 576, 896, 1000, 2049)))


@given(
    st.integers(0, 5), WIDTHS, st.sampled_from(DTYPES), st.sampled_from(DTYPES), st.integers(0, 99)
)
def test_rows_are_those_of_the_reference(
    num_rows: int, width: int, dtype: torch.dtype, weight_dtype: torch.dtype, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    stream = random_tensor(rng, (num_rows, width), torch.float32, 3.0)
    weight = random_tensor(rng, (width,), weight_dtype)
    before = stream.clone()
    out = torch.full((num_rows, width), torch.nan, dtype=dtype, device=DEVICE)
    rms_norm(out, stream, weight, 1e-5)
    assert_near(out, reference.rms_norm(wide(stream), wide(weight), 1e-5), 8.0)
    assert torch.equal(stream, before)

    delta = random_tensor(rng, (num_rows, width), dtype, 2.0)
    add_rms_norm(out, stream, delta, weight, 0.25)
    assert torch.equal(stream, before + delta.float())
    assert_near(out, reference.rms_norm(wide(stream), wide(weight), 0.25), 8.0)
    add_rms_norm(delta, before, delta, weight, 0.25)
    assert torch.equal(delta, out), "what is added may make room for the norm"


@pytest.mark.parametrize("value", [0.0, 1e-30, 1e15])
def test_a_row_of_nothing_or_of_much_stays_finite(value: float) -> None:
    stream = torch.full((1, 48), value, device=DEVICE)
    out = torch.empty_like(stream)
    rms_norm(out, stream, torch.ones(48, device=DEVICE), 1e-6)
    assert_near(out, reference.rms_norm(wide(stream), np.ones(48), 1e-6))


def test_a_row_is_the_same_alone_and_among_others() -> None:
    rng = np.random.default_rng(1)
    stream = random_tensor(rng, (9, 100), torch.float32)
    weight = random_tensor(rng, (100,), torch.float32)
    together, alone = torch.empty_like(stream), torch.empty_like(stream)
    rms_norm(together, stream, weight, 1e-6)
    for row in range(9):
        rms_norm(alone[row : row + 1], stream[row : row + 1], weight, 1e-6)
    assert torch.equal(together, alone)
