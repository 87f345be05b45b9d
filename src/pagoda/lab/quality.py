"""What a method costs in quality, over all windows that were read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pagoda.lab.change import Change, paired_change
from pagoda.lab.scores import Scores

_FIRST = 1024
"""Positions that are told apart: what fits most prompts."""


@dataclass(frozen=True, slots=True)
class Reading:
    """Perplexity over some positions of each window, and its change by the full cache's."""

    perplexity: float
    change: Change

    @classmethod
    def of(cls, losses: NDArray[Any], reference: NDArray[Any]) -> Reading:
        """From losses, [windows, positions] both."""
        of_windows = losses.mean(axis=1, dtype=np.float64)
        change = paired_change(of_windows, reference.mean(axis=1, dtype=np.float64))
        return cls(float(np.exp(of_windows.mean())), change)

    def as_json(self) -> dict[str, float]:
        """A change as a share: 0.02 is 2% more."""
        return {
            "perplexity": self.perplexity,
            "perplexity_change": self.change.mean,
            "perplexity_change_low": self.change.low,
            "perplexity_change_high": self.change.high,
        }


@dataclass(frozen=True, slots=True)
class Quality:
    """Beside the full cache, from windows of one length."""

    num_windows: int
    num_tokens: int
    """That were predicted: all but the first of each window."""
    whole: Reading
    first: Reading
    """Of tokens at positions below 1,024."""
    last_half: Reading
    """Of tokens in the second half of each window, whose context is the longest."""
    kl_mean: float
    kl_p99: float
    """99% of positions diverge less."""
    top1: float
    """The share of positions where the likeliest token is the full cache's."""

    @classmethod
    def of(cls, windows: Sequence[Scores], full: Sequence[Scores]) -> Quality:
        """From the scores of one or more windows, those of the full cache beside them."""
        losses, reference = (np.stack([each.losses for each in own]) for own in (windows, full))
        divergences = np.stack([each.divergences for each in windows])
        half = losses.shape[1] // 2  # column i tells of the token at position i + 1
        return cls(
            num_windows=len(windows),
            num_tokens=losses.size,
            whole=Reading.of(losses, reference),
            first=Reading.of(losses[:, : _FIRST - 1], reference[:, : _FIRST - 1]),
            last_half=Reading.of(losses[:, half:], reference[:, half:]),
            kl_mean=float(divergences.mean(dtype=np.float64)),
            kl_p99=float(np.quantile(divergences, 0.99)),
            top1=float(np.mean([each.agrees for each in windows])),
        )

    def as_json(self) -> dict[str, Any]:
        """Divergences in nats."""
        return {
            **self.whole.as_json(),
            "kl_mean": self.kl_mean,
            "kl_p99": self.kl_p99,
            "top1": self.top1,
            "tokens": self.num_tokens,
            "windows": self.num_windows,
            "first_1k": self.first.as_json(),
            "last_half": self.last_half.as_json(),
        }
