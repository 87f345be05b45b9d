from __future__ import annotations

import numpy as np
import pytest
import torch
from device_tensors import DEVICE, DTYPES, assert_near, random_tensor, wide
from hypothesis import given
from hypothesis import strategies as st

from pagoda.kernels import reference
from pagoda.kernels.array import Array
from pagoda.kernels.gpu.norm import RowNorm, add_and_norm, norm_rows

WIDTHS = st.one_of(st.integers(1, 70), st.sampled_from((128, 576, 896, 1000, 2049)))
NORMS = st.builds(
    RowNorm, st.sampled_from((1e-5, 0.25)), st.booleans(), st.sampled_from((0.0, 1.0)),
    st.booleans(),
)  # fmt: skip
RMS = RowNorm(1e-6)


def truth(x: Array, weight: torch.Tensor | None, norm: RowNorm) -> Array:
    if weight is None:
        return x
    of_rows = reference.layer_norm if norm.is_centred else reference.rms_norm
    weights, biases = wide(weight)[: x.shape[1]], wide(weight)[x.shape[1] :]
    normed = of_rows(x, weights + norm.weight_offset, norm.eps)
    return normed + biases if norm.is_shifted else normed


@given(
    st.integers(0, 5), WIDTHS, st.sampled_from(DTYPES), st.sampled_from(DTYPES), NORMS,
    st.booleans(), st.integers(0, 99),
)  # fmt: skip
def test_rows_are_those_of_the_reference(
    num_rows: int, width: int, dtype: torch.dtype, weight_dtype: torch.dtype, norm: RowNorm,
    has_weight: bool, seed: int,
) -> None:  # fmt: skip
    rng = np.random.default_rng(seed)
    stream = random_tensor(rng, (num_rows, width), torch.float32, 3.0)
    size = ((1 + norm.is_shifted) * width,)
    weight = random_tensor(rng, size, weight_dtype) if has_weight else None
    before = stream.clone()
    out = torch.full((num_rows, width), torch.nan, dtype=dtype, device=DEVICE)
    norm_rows(out, stream, weight, norm)
    assert_near(out, truth(wide(stream), weight, norm), 8.0)
    assert torch.equal(stream, before)

    delta = random_tensor(rng, (num_rows, width), dtype, 2.0)
    add_and_norm(out, stream, delta, weight, norm)
    assert torch.equal(stream, before + delta.float())
    assert_near(out, truth(wide(stream), weight, norm), 8.0)
    add_and_norm(delta, before, delta, weight, norm)
    assert torch.equal(delta, out), "what is added may make room for the norm"


@given(
    st.integers(0, 5), WIDTHS, st.sampled_from(DTYPES), NORMS, st.booleans(),
    st.sampled_from((1.0, 0.22)), st.booleans(), st.integers(0, 99),
)  # fmt: skip
def test_what_is_added_is_normed_and_scaled(
    num_rows: int, width: int, dtype: torch.dtype, norm: RowNorm, has_delta_weight: bool,
    scale: float, has_out: bool, seed: int,
) -> None:  # fmt: skip
    rng = np.random.default_rng(seed)
    stream = random_tensor(rng, (num_rows, width), torch.float32, 3.0)
    delta = random_tensor(rng, (num_rows, width), dtype, 2.0)
    size = ((1 + norm.is_shifted) * width,)
    weight, own_weight = (random_tensor(rng, size, dtype) for _ in range(2))
    delta_weight = own_weight if has_delta_weight else None
    out = torch.full((num_rows, width), torch.nan, dtype=dtype, device=DEVICE) if has_out else None
    expected = wide(stream) + scale * truth(wide(delta), delta_weight, norm)
    add_and_norm(out, stream, delta, weight, norm, delta_weight, scale)
    assert_near(stream, expected, 8.0)
    if out is not None:
        assert_near(out, truth(wide(stream), weight, norm), 8.0)


@pytest.mark.parametrize("value", [0.0, 1e-30, 1e15])
def test_a_row_of_nothing_or_of_much_stays_finite(value: float) -> None:
    stream = torch.full((1, 48), value, device=DEVICE)
    out = torch.empty_like(stream)
    norm_rows(out, stream, torch.ones(48, device=DEVICE), RMS)
    assert_near(out, reference.rms_norm(wide(stream), np.ones(48), 1e-6))


def test_a_row_is_the_same_alone_and_among_others() -> None:
    rng = np.random.default_rng(1)
    stream = random_tensor(rng, (9, 100), torch.float32)
    weight = random_tensor(rng, (100,), torch.float32)
    together, alone = torch.empty_like(stream), torch.empty_like(stream)
    norm_rows(together, stream, weight, RMS)
    for row in range(9):
        norm_rows(alone[row : row + 1], stream[row : row + 1], weight, RMS)
    assert torch.equal(together, alone)
