"""The share of experts that a step reads, beside routers that draw."""

from __future__ import annotations

import numpy as np
import pytest

from pagoda.sizing.experts_read import share_read

NUM_DRAWN = 400


def drawn_share(num_experts: int, num_used: int, num_tokens: int, skew: float) -> float:
    """The mean share that steps of tokens read whose router draws experts apart, the first ones
    more often the larger the skew."""
    rng = np.random.default_rng(num_tokens)
    liking = -skew * np.log(np.arange(1, num_experts + 1))
    logits = liking + rng.gumbel(size=(NUM_DRAWN, num_tokens, num_experts))
    chosen = np.argsort(-logits, axis=-1)[..., :num_used].reshape(NUM_DRAWN, -1)
    return float(np.mean([len(set(step)) for step in chosen.tolist()])) / num_experts


@pytest.mark.parametrize("num_tokens", [1, 2, 7, 40])
@pytest.mark.parametrize(("num_experts", "num_used"), [(8, 2), (32, 4)])
def test_it_is_what_even_routers_read_and_others_read_less(
    num_experts: int, num_used: int, num_tokens: int
) -> None:
    expected = share_read(num_used / num_experts, num_tokens)
    assert drawn_share(num_experts, num_used, num_tokens, 0) == pytest.approx(expected, abs=0.02)
    assert drawn_share(num_experts, num_used, num_tokens, 1) <= expected + 1e-9


def test_all_of_them_are_read_where_every_token_goes_to_all() -> None:
    assert share_read(1.0, 1) == share_read(1.0, 64) == 1
    assert share_read(0.25, 0) == 0
