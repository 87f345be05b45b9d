from __future__ import annotations

import numpy as np
import pytest
import torch
from device_tensors import DEVICE, assert_near, random_tensor, wide
from hypothesis import given
from hypothesis import strategies as st

from pagoda.kernels.gpu.logits import adjust_logits

WIDTHS = st.one_of(st.integers(1, 70), st.sampled_from((1023, 1024, 1025, 3000)))


@given(
    st.integers(0, 4), WIDTHS, st.sampled_from((1.0, 0.0625, 16.0)),
    st.sampled_from((None, 30.0, 2.5)), st.integers(0, 99),
)  # fmt: skip
def test_logits_are_scaled_and_then_capped(
    num_rows: int, width: int, scale: float, cap: float | None, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    logits = random_tensor(rng, (num_rows, width), torch.float32, 20.0)
    scaled = wide(logits) * scale
    adjust_logits(logits, scale, cap)
    assert_near(logits, scaled if cap is None else cap * np.tanh(scaled / cap))


@pytest.mark.filterwarnings("ignore:overflow")  # a series of the interpreter
@pytest.mark.parametrize("value", [1e30, -1e30])
def test_a_logit_of_much_is_the_cap(value: float) -> None:
    logits = torch.full((1, 3), value, device=DEVICE)
    adjust_logits(logits, 1.0, 30.0)
    assert logits.tolist() == [[np.copysign(30.0, value)] * 3]
