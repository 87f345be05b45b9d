"""What a request changes in its logits before the draw.

That is the mask of its grammar, its bias, minimum length and penalties.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from pagoda.engine.grammar import Matcher
from pagoda.request import SamplingParams
from pagoda.scheduling import Sequence as RunningSequence

GREEDY_BELOW = 1e-5
"""A temperature below this is greedy: dividing by it would overflow float32."""

_CHOICE_STRIDE = 0x9E3779B97F4A7C15
"""Keeps the draws of a request's choices apart (the golden ratio in 64 bits)."""


@dataclass(frozen=True, slots=True)
class SamplingRow:
    """One sequence whose next token is wanted. The lists are only read.

    One object serves a sequence for all of its steps: `output_token_ids` may grow between them.
    """

    params: SamplingParams
    seed: int
    """Start of the sequence's draws; any integer, used modulo 2**64."""
    prompt_token_ids: Sequence[int]
    output_token_ids: Sequence[int]
    """Tokens chosen so far; their number is the position of the draw."""
    stop_token_ids: frozenset[int]
    """Tokens that would end the output; masked until `min_tokens` are there."""
    matcher: Matcher | None = None
    """Follows the output through the request's grammar."""
    changes_every_step: bool = field(init=False)
    """There is a grammar, a bias or a penalty."""
    is_greedy: bool = field(init=False)
    """The most likely token is chosen; nothing is drawn."""

    def __post_init__(self) -> None:
        params = self.params
        changes = (
            self.matcher is not None
            or bool(params.logit_bias)
            or params.repetition_penalty != 1.0
            or params.presence_penalty != 0.0
            or params.frequency_penalty != 0.0
        )
        object.__setattr__(self, "changes_every_step", changes)
        object.__setattr__(self, "is_greedy", params.temperature < GREEDY_BELOW)

    @classmethod
    def of(cls, sequence: RunningSequence) -> SamplingRow:
        """The row of a sequence, now and in every later step."""
        request = sequence.request
        return cls(
            params=request.sampling,
            seed=(request.seed + sequence.index * _CHOICE_STRIDE) % 2**64,
            prompt_token_ids=request.prompt_token_ids,
            output_token_ids=sequence.output_token_ids,
            stop_token_ids=request.stop_token_ids,
            matcher=None if request.grammar is None else request.grammar.matcher(),
        )

    @property
    def awaits_min_tokens(self) -> bool:
        return len(self.output_token_ids) < self.params.min_tokens

    @property
    def changes_logits(self) -> bool:
        return self.changes_every_step or self.awaits_min_tokens


def change_logits(logits: NDArray[np.float32], rows: Sequence[SamplingRow]) -> None:
    """Make each row's changes in `logits` [rows, vocab].

    The grammar's mask first; then in vLLM's order: bias, then the mask of stop tokens, then the
    repetition penalty (over prompt and output), then presence and frequency penalties (over the
    output). Only the entries of the tokens concerned are touched.
    """
    for values, row in zip(logits, rows, strict=True):
        if row.matcher is not None:
            row.matcher.mask(values, row.output_token_ids)
        _add_bias(values, row)
        _mask_stops(values, row)
        _repetition_penalty(values, row)
        _output_penalties(values, row)


def _add_bias(values: NDArray[np.float32], row: SamplingRow) -> None:
    bias = row.params.logit_bias
    if bias:
        values[_index(bias.keys())] += np.array(list(bias.values()), np.float32)


def _mask_stops(values: NDArray[np.float32], row: SamplingRow) -> None:
    if not row.awaits_min_tokens:
        return
    # An id beyond the vocabulary can never come up, so it needs no mask.
    stops = [token_id for token_id in row.stop_token_ids if token_id < len(values)]
    others = np.isfinite(values)
    others[stops] = False
    # Where a grammar leaves nothing but the end, the end it is.
    if others.any():
        values[stops] = -np.inf


def _repetition_penalty(values: NDArray[np.float32], row: SamplingRow) -> None:
    """Keskar et al. 2019, CTRL: positive logits are divided, negative ones multiplied."""
    penalty = np.float32(row.params.repetition_penalty)
    if penalty == 1.0:
        return
    seen = _index([*row.prompt_token_ids, *row.output_token_ids])
    # A token that was seen twice is gathered before any is written, so it is penalised once.
    taken = values[seen]
    values[seen] = np.where(taken > 0, taken / penalty, taken * penalty)


def _output_penalties(values: NDArray[np.float32], row: SamplingRow) -> None:
    presence, frequency = row.params.presence_penalty, row.params.frequency_penalty
    if (presence == 0.0 and frequency == 0.0) or not row.output_token_ids:
        return
    token_ids, counts = np.unique(_index(row.output_token_ids), return_counts=True)
    values[token_ids] -= (presence + frequency * counts).astype(np.float32)


def _index(token_ids: Iterable[int]) -> NDArray[np.int64]:
    return np.fromiter(token_ids, np.int64)
