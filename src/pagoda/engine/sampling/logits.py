"""The applier of rules to logits in main memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from pagoda.engine.sampling.row import SamplingRow
from pagoda.engine.sampling.rule import Edit, Entries


def change_logits(logits: NDArray[np.float32], rows: Sequence[SamplingRow]) -> None:
    """Change `logits` [rows, vocab] in place: each row's grammar, then its rules in their order.

    Only the entries of the tokens concerned are touched. Raises `MatchError`.
    """
    for values, row in zip(logits, rows, strict=True):
        if row.matcher is not None:
            row.matcher.mask(values, row.output_token_ids)
        for rule, entries in row.edits(len(values)):
            _APPLY[rule.edit](values, entries)


def _add(values: NDArray[np.float32], entries: Entries) -> None:
    values[entries.token_ids] += entries.numbers


def _scale(values: NDArray[np.float32], entries: Entries) -> None:
    taken, numbers = values[entries.token_ids], entries.numbers
    values[entries.token_ids] = np.where(taken > 0, taken / numbers, taken * numbers)


def _ban(values: NDArray[np.float32], entries: Entries) -> None:
    others = np.isfinite(values)
    others[entries.token_ids] = False
    if others.any():
        values[entries.token_ids] = -np.inf


def _keep(values: NDArray[np.float32], entries: Entries) -> None:
    kept = values[entries.token_ids]
    if np.isfinite(kept).any():
        values[:] = -np.inf
        values[entries.token_ids] = kept


_APPLY: dict[Edit, Callable[[NDArray[np.float32], Entries], None]] = {
    Edit.ADD: _add,
    Edit.SCALE: _scale,
    Edit.BAN: _ban,
    Edit.KEEP: _keep,
}
