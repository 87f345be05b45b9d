"""How one window was read: position by position, beside the full cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray


class Scores(NamedTuple):
    """Of n positions, each of which is followed by a token of the text."""

    losses: NDArray[np.float32]
    """[n] minus the log-probability of the token that follows, in nats."""
    divergences: NDArray[np.float32]
    """[n] Kullback and Leibler's, of the full cache's distribution from this one: KL(full ‖ this),
    in nats."""
    agrees: NDArray[np.bool_]
    """[n] the likeliest token is the full cache's."""

    @classmethod
    def joined(cls, parts: Sequence[Scores]) -> Scores:
        """Those of all positions of the parts, in their order."""
        return cls(*map(np.concatenate, zip(*parts, strict=True)))


class Distributions(NamedTuple):
    """What may follow each of n positions."""

    logprobs: torch.Tensor
    """[n, vocab] float32"""
    best: torch.Tensor
    """[n] the likeliest token"""

    @classmethod
    def of(cls, logits: torch.Tensor) -> Distributions:
        """From [n, vocab] float32."""
        return cls(torch.log_softmax(logits, 1), logits.argmax(1))

    def scores(self, full: Distributions, token_ids: Sequence[int]) -> Scores:
        """Beside those of the full cache at the same positions; `token_ids` [n] follow there."""
        targets = torch.tensor(token_ids, device=self.best.device)[:, None]
        differences = full.logprobs - self.logprobs
        return Scores(
            losses=_array(-self.logprobs.gather(1, targets)[:, 0]),
            divergences=_array((full.logprobs.exp() * differences).sum(1)),
            agrees=_array(self.best == full.best),
        )


def _array(tensor: torch.Tensor) -> NDArray[Any]:
    return tensor.cpu().numpy()
