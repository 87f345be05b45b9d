from __future__ import annotations

import numpy as np
import pytest
import torch
from device_tensors import DEVICE, DTYPES, assert_near, random_tensor, wide
from hypothesis import given
from hypothesis import strategies as st

from pagoda.kernels import reference
from pagoda.kernels.gpu.activation import ACTIVATIONS, apply_activation, apply_gate
from pagoda.models.decoder import Activation

WIDTHS = st.one_of(st.integers(1, 70), st.sampled_from((1023, 1024, 1025, 1536, 3072)))


@pytest.mark.filterwarnings("ignore:overflow")  # exp of the interpreter
@given(
    st.integers(0, 4), WIDTHS, st.sampled_from(DTYPES), st.sampled_from((1.0, 20.0)),
    st.sampled_from(ACTIVATIONS),
)  # fmt: skip
def test_gates_are_those_of_the_reference(
    num_rows: int, width: int, dtype: torch.dtype, scale: float, activation: str
) -> None:
    gate_up = random_tensor(np.random.default_rng(width), (num_rows, 2 * width), dtype, scale)
    out = torch.full((num_rows, width), torch.nan, dtype=dtype, device=DEVICE)
    apply_gate(out, gate_up, activation)
    # far below zero 1 and erf cancel, before ups are multiplied with what is left
    magnitude = scale if activation == "gelu" else 1.0
    assert_near(out, reference.gated(wide(gate_up), activation), magnitude)


@pytest.mark.filterwarnings("ignore:overflow")
@given(WIDTHS, st.sampled_from(DTYPES), st.sampled_from(ACTIVATIONS[:-1]))
def test_what_has_no_gate_is_activated(width: int, dtype: torch.dtype, activation: str) -> None:
    x = random_tensor(np.random.default_rng(width), (3, width), dtype, 20.0)
    out = torch.full((3, width), torch.nan, dtype=dtype, device=DEVICE)
    apply_activation(out, x, activation)
    assert_near(out, reference.activated(wide(x), activation))


@pytest.mark.filterwarnings("ignore:overflow")
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_a_gate_far_below_zero_is_shut(activation: str) -> None:
    gate_up = torch.tensor([[-3e4, -200.0, 200.0, 7.0, 7.0, 7.0]], device=DEVICE)
    out = torch.empty(1, 3, device=DEVICE)
    apply_gate(out, gate_up, activation)
    shut, also, wide_open = out[0].tolist()
    assert (shut, also) == (0.0, 0.0)
    assert wide_open == pytest.approx(56.0 if activation == "clamped_swiglu" else 1400.0, rel=1e-5)


def test_every_activation_of_a_decoder_has_its_kernel() -> None:
    assert {each.value for each in Activation} == set(ACTIVATIONS)
