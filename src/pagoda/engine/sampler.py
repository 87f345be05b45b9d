"""Samplers: logits in, one token per row out. They keep nothing; sequences have no state in them.

What happens to a row, in vLLM's order:

    logits ─┬─ log-probabilities (of the logits as the model gave them)
            └─ bias, mask of stop tokens, penalties ── temperature ── min_p, top_k, top_p ── draw

A draw is counter-based: its one random number depends on the row's seed and on how many tokens the
sequence has, so a sequence gets the same tokens whatever it is batched with, and again after it was
preempted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from torch import Tensor

from pagoda.engine.logits import SamplingRow
from pagoda.engine.outputs import Logprob
from pagoda.errors import EngineError


class SampledToken(NamedTuple):
    """The token chosen for one row."""

    token_id: int
    logprobs: dict[int, Logprob] | None
    """The chosen token first, then the most likely ones; None unless the row asked for them."""


class LogitsError(EngineError):
    """The model gave NaN, plus infinity or nothing finite."""

    def __init__(self, rows: Sequence[int]) -> None:
        super().__init__(f"the model's logits are not finite in rows {list(rows)}")


class Sampler(Protocol):
    """Chooses tokens from logits that lie on its device."""

    def sample(self, logits: Tensor, rows: Sequence[SamplingRow]) -> list[SampledToken]:
        """Choose a token for each row of `logits` [rows, vocab] float32, which is not changed.

        Raises `LogitsError` if a row has NaN or plus infinity, or nothing finite.
        """
        ...

    def token_logprobs(
        self, logits: Tensor, target_ids: Sequence[int], num_top: int
    ) -> list[dict[int, Logprob]]:
        """Per row of `logits` [rows, vocab] float32: its target and its `num_top` most likely.

        The target comes first; equal logits stand in the order of their ids. `decoded_token` is
        None.
        """
        ...
