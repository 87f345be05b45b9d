"""Samplers: logits in, one token per row out. They keep nothing; a sequence's state is in its row.

What happens to a row, in vLLM's order:

    logits ─┬─ log-probabilities (of the logits as the model gave them)
            └─ grammar, rules (`rules.table`) ── temperature ── min_p, top_k, top_p ── draw

A draw takes one random number, which depends on the row's seed and on how many tokens the sequence
has. So a sequence gets the same tokens whatever it is batched with, and again after a preemption.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from torch import Tensor

from pagoda.engine.outputs import Logprob
from pagoda.engine.sampling.row import SamplingRow
from pagoda.errors import EngineError


class SampledToken(NamedTuple):
    """The token chosen for one row."""

    token_id: int
    logprobs: dict[int, Logprob] | None
    """The chosen token first, then the most likely ones; None unless the row asked for them."""


class LogitsError(EngineError):
    """The model gave NaN, plus infinity or nothing finite."""

    def __init__(self) -> None:
        super().__init__("the model's logits are not finite")


class Draws(Protocol):
    """Tokens that a sampler chooses, or has chosen: one for each row."""

    @property
    def token_ids(self) -> Tensor:
        """[rows] int64, where the logits lie. Any id where a row's logits are not finite."""
        ...

    def wait(self) -> list[SampledToken | None]:
        """The tokens, once they are here; None where a row's logits are not finite.

        That is, where the row has NaN or plus infinity, or nothing finite.
        """
        ...


class Sampler(Protocol):
    """Chooses tokens from logits that lie on its device."""

    def begin(self, logits: Tensor, rows: Sequence[SamplingRow], positions: Sequence[int]) -> Draws:
        """Choose a token for each row of `logits` [rows, vocab] float32, which is not changed.

        On a device that computes on its own this returns before it is done. There is at least one
        row. `positions` say how many tokens each row's sequence has drawn before, which may be
        more than are known of it. What the rows say is read at once, and `logits` before anything
        that is launched later.
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
