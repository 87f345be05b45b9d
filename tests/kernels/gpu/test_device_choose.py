from __future__ import annotations

import numpy as np
import pytest
import torch
from device_tensors import DEVICE
from hypothesis import given
from hypothesis import strategies as st

from pagoda.kernels import reference
from pagoda.kernels.gpu import choose
from pagoda.kernels.gpu.choose import draw_by_id, draw_by_rank, largest_of, rank_ids

TOLERANCE = 1e-6
"""Error of a cumulative probability: weights are float32."""


def random_logits(seed: int, num_rows: int, vocab_size: int, step: float) -> torch.Tensor:
    values = np.random.default_rng(seed).normal(size=(num_rows, vocab_size)) * 3
    return torch.from_numpy(np.round(values / step) * step).to(DEVICE, torch.float32)


LOGITS = st.builds(
    random_logits, st.integers(0, 10**6), st.integers(1, 4),
    st.sampled_from((1, 2, 255, 256, 257, 900)), st.sampled_from((1e-6, 0.5)),
)  # fmt: skip
UNIFORMS = st.one_of(st.floats(0, 1, exclude_max=True), st.just(np.nextafter(1.0, 0.0)))


def every_row(value: float, values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return torch.full((len(values),), value, dtype=dtype, device=DEVICE)


def is_drawn(token_id: int, weights: dict[int, float], uniform: float) -> bool:
    """The token's interval has the uniform number in it, within the rounding of float32."""
    if weights.get(token_id, 0.0) == 0.0:
        return False
    ids = list(weights)
    mass = sum(weights.values())
    before = sum(weights[each] for each in ids[: ids.index(token_id)]) / mass
    return before - TOLERANCE <= uniform <= before + weights[token_id] / mass + TOLERANCE


@given(LOGITS, st.sampled_from((0.3, 1.0, 4.0)), UNIFORMS)
def test_draws_by_id(logits: torch.Tensor, temperature: float, uniform: float) -> None:
    largest, _ = largest_of(logits)
    scale = every_row(np.log2(np.e) / temperature, logits, torch.float32)
    drawn = draw_by_id(logits, largest, scale, every_row(uniform, logits, torch.float64))
    for token_id, row in zip(drawn.tolist(), logits.cpu().numpy(), strict=True):
        assert is_drawn(token_id, reference.drawable(row, temperature, 0, 1.0, 0.0), uniform)


@given(
    LOGITS,
    st.sampled_from((0.3, 1.0, 4.0)),
    st.integers(1, 1000),
    st.one_of(st.just(1.0), st.floats(0.01, 0.99)),
    st.sampled_from((0.0, 0.00237, 0.2371)),
    UNIFORMS,
)
def test_draws_by_rank(
    logits: torch.Tensor, temperature: float, top_k: int, top_p: float, min_p: float, uniform: float
) -> None:
    largest, _ = largest_of(logits)
    most = min(top_k, logits.shape[1])
    drawn = draw_by_rank(
        logits,
        largest,
        every_row(np.log2(np.e) / temperature, logits, torch.float32),
        every_row(most, logits, torch.int64),
        every_row(top_p, logits, torch.float64),
        every_row(min_p, logits, torch.float32),
        every_row(uniform, logits, torch.float64),
        min(most + top_k % 7, logits.shape[1]),
    )
    for token_id, row in zip(drawn.tolist(), logits.cpu().numpy(), strict=True):
        # Near the limit itself one token more or less may stay.
        near = [
            reference.drawable(row, temperature, top_k, limit, min_p)
            for limit in (top_p, top_p * (1 - 1e-6), top_p * (1 + 1e-6))
        ]
        assert any(is_drawn(token_id, weights, uniform) for weights in near)


@given(LOGITS, st.integers(1, 1100), st.sampled_from((1, choose.MOST_CANDIDATES)))
def test_ranks_are_those_of_the_reference(logits: torch.Tensor, count: int, most: int) -> None:
    count = min(count, logits.shape[1])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(choose, "MOST_CANDIDATES", most)
        found = rank_ids(logits, count).tolist()
    assert found == [reference.ranked(row)[:count] for row in logits.cpu().numpy()]


@pytest.mark.parametrize("count", [1, 5, 7])
def test_zeros_tie_and_infinity_is_last(count: int) -> None:
    logits = torch.tensor([[-torch.inf, -0.0, 0.0, -1e-45, 1e-45, -0.0, -3e38]], device=DEVICE)
    assert rank_ids(logits, count).tolist() == [[4, 1, 2, 5, 3, 6, 0][:count]]


@pytest.mark.parametrize("broken", [torch.nan, torch.inf, -torch.inf])
def test_rows_that_are_not_finite_lead_nowhere_else(broken: float) -> None:
    logits = torch.full((3, 300), broken, device=DEVICE)
    logits[1, 200] = 1.0
    logits[2] = 1.0
    largest, _ = largest_of(logits)
    ones = torch.ones(3, device=DEVICE)
    top_k = torch.full((3,), 5, device=DEVICE)
    by_rank = draw_by_rank(logits, largest, ones, top_k, ones.double(), ones, ones.double() / 2, 5)
    by_id = draw_by_id(logits, largest, ones, ones.double() / 2)
    for drawn in (by_id, by_rank):
        assert ((drawn >= 0) & (drawn < 300)).all()
    assert (by_id[2].item(), by_rank[2].item()) == (150, 2)
