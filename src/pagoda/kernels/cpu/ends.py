"""The two ends of a step: from token ids to the stream, and from the stream to logits."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import prange

from pagoda.kernels.cpu.decoder import Routines, Step, Widths
from pagoda.kernels.cpu.kernel import kernel
from pagoda.kernels.cpu.logits import adjust_logits
from pagoda.kernels.cpu.multiply import ProductRoutines, multiply
from pagoda.kernels.cpu.norm import norm_rows
from pagoda.kernels.cpu.routine import call
from pagoda.kernels.cpu.team import PHASE_BYTES, claim, finish, team_of

_ITEM_ROWS = 4
# Not plain numbers, for which Numba would compile a function of their own.
_FLOAT_SIZE: Any = np.int64(4)
_NONE: Any = np.int64(0)


class Ends(NamedTuple):
    """What comes before the first layer and after the last: addresses."""

    token_ids: int
    """[rows] int64"""
    embedding: int
    """The table of the panels of [vocab_size, h]"""
    lm_head: int
    """As `embedding`."""
    bias: int
    """[vocab_size] float32, of logits"""
    norm: int
    """[h] float32"""
    embedding_scale: int
    """[1] float32"""
    logit_scale: int
    """[1] float32, or at 0: logits are neither scaled nor capped."""
    logit_cap: int
    """[1] float32, or at 0: logits are not capped."""
    vocab_size: int
    """No address."""
    logits: int
    """[logit rows, vocab_size] float32, written"""
    logit_rows: int
    """[num_logit_rows] int64"""
    num_logit_rows: int
    """No address."""


@kernel
def embed(step: Step, ends: Ends, widths: Widths, routines: Routines) -> None:
    """stream[r] = the embedding of token_ids[r], scaled."""
    total = (step.num_rows + _ITEM_ROWS - 1) // _ITEM_ROWS
    for thread in prange(step.num_threads):
        mine = 0
        item = claim(step.counters)
        while item < total:
            first = item * _ITEM_ROWS
            call(
                routines.embed,
                (step.stream + first * widths.hidden * 4, ends.token_ids + first * 8,
                 min(_ITEM_ROWS, step.num_rows - first), ends.embedding, ends.vocab_size,
                 widths.hidden, ends.embedding_scale,
                 step.memory + thread * step.memory_bytes),
            )  # fmt: skip
            mine += 1
            item = claim(step.counters)
        finish(step.counters, mine, total)


@kernel
def project(
    step: Step, ends: Ends, widths: Widths, routines: Routines, panels: ProductRoutines
) -> None:
    """logits = norm(stream[logit_rows]) · lm_head + bias, scaled and capped."""
    for thread in prange(step.num_threads):
        team = team_of(thread, step.num_threads, step.places)
        norm_rows(
            step.counters, routines.norm, step.hidden, widths.weight_size, step.stream,
            ends.logit_rows, ends.num_logit_rows, widths.hidden, ends.norm, step.eps,
            routines.round, step.records,
        )  # fmt: skip
        multiply(
            step.counters + PHASE_BYTES, team, panels, routines.keep,
            step.memory + thread * step.memory_bytes, ends.logits, ends.vocab_size * 4,
            _FLOAT_SIZE,
            step.hidden, ends.num_logit_rows, widths.hidden * widths.weight_size // 4, step.records,
            ends.lm_head, _NONE, ends.vocab_size, ends.bias, _NONE, ends.lm_head,
        )  # fmt: skip
        if ends.logit_scale != 0:
            adjust_logits(
                step.counters + 2 * PHASE_BYTES, ends.logits, ends.num_logit_rows, ends.vocab_size,
                ends.logit_scale, ends.logit_cap,
            )  # fmt: skip
