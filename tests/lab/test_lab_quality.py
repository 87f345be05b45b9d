"""The arithmetic of the lab, against sums by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from pagoda.lab.change import paired_change
from pagoda.lab.quality import Quality
from pagoda.lab.scores import Distributions, Scores


def logits_of(*shares: list[float]) -> torch.Tensor:
    """A row for each list of probabilities; any constant may be added to logits."""
    return torch.tensor(shares).log() + 3.0


def scores(losses: list[float], divergence: float = 0.0, *, agrees: bool = True) -> Scores:
    """Of one window."""
    count = len(losses)
    return Scores(
        np.array(losses, np.float32),
        np.full(count, divergence, np.float32),
        np.full(count, agrees),
    )


def test_divergence_loss_and_best_token_are_those_of_the_definitions() -> None:
    full = Distributions.of(logits_of([0.5, 0.25, 0.25], [0.1, 0.8, 0.1]))
    other = Distributions.of(logits_of([0.25, 0.5, 0.25], [0.1, 0.8, 0.1]))
    found = other.scores(full, [0, 1])
    assert found.losses == pytest.approx([math.log(4), -math.log(0.8)], rel=1e-5)
    by_hand = 0.5 * math.log(2) + 0.25 * math.log(0.5)
    assert found.divergences == pytest.approx([by_hand, 0.0], abs=1e-6)
    assert found.agrees.tolist() == [False, True]
    own = full.scores(full, [0, 1])
    assert own.divergences.tolist() == [0.0, 0.0]
    assert own.agrees.all()


def test_a_change_is_that_of_pairs() -> None:
    reference = np.array([1.0, 3.0, 2.0, 2.5])
    worse = paired_change(reference + math.log(1.25), reference)
    # Windows differ from each other, but not their pairs: the interval is a point.
    assert tuple(worse) == pytest.approx((0.25, 0.25, 0.25))
    noise = np.array([0.01, -0.01, 0.02, -0.02])
    unsure = paired_change(reference + noise, reference)
    assert unsure.low < 0 < unsure.high
    assert unsure.mean == pytest.approx(0.0)


def test_quality_tells_the_last_half_apart() -> None:
    # Tokens 1 to 8 of a window of nine: those from position 5 on are read with the longest context.
    full = [scores([1.0] * 8), scores([2.0] * 8)]
    worse = [scores([1.0] * 4 + [1.5] * 4, 0.5, agrees=False), scores([2.0] * 4 + [2.5] * 4, 0.5)]
    quality = Quality.of(worse, full)
    assert (quality.num_windows, quality.num_tokens) == (2, 16)
    assert quality.whole.perplexity == pytest.approx(math.exp(1.75))
    assert quality.whole.change.mean == pytest.approx(math.expm1(0.25))
    assert quality.last_half.change.mean == pytest.approx(math.expm1(0.5))
    assert quality.first == quality.whole
    assert (quality.kl_mean, quality.kl_p99, quality.top1) == (0.5, 0.5, 0.5)


def test_the_first_1024_positions_stand_apart_in_longer_windows() -> None:
    num_first = 1023  # the token at position 0 is predicted by nothing
    full = [scores([1.0] * 1200)] * 2
    late = [scores([1.0] * num_first + [2.0] * (1200 - num_first))] * 2
    quality = Quality.of(late, full)
    assert quality.first.change.mean == 0.0
    assert quality.whole.change.mean > 0.0


def test_one_token_in_a_hundred_is_left_to_the_99th_percentile() -> None:
    full = [scores([1.0] * 100)] * 2
    divergences = np.array([0.01] * 98 + [5.0] * 2, np.float32)
    rare = full[0]._replace(divergences=divergences)
    quality = Quality.of([rare, rare], full)
    assert quality.kl_p99 == pytest.approx(5.0)
    assert quality.kl_mean == pytest.approx(0.01 * 0.98 + 5.0 * 0.02)
