"""Plain rows of a checkpoint that are quantised while they are packed, a few at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from pagoda.errors import ModelError
from pagoda.kernels.array import Array
from pagoda.kernels.block_types import PANEL, row_bytes
from pagoda.kernels.cpu.quantise import LARGEST, quantise
from pagoda.models.stored_rows import StoredRows
from pagoda.models.weights import Keeps
from pagoda.sizing.kept_weights import are_kept

_CHUNK_VALUES = 1 << 20
"""Numbers that are quantised at once: 4 MB of float32."""


def keeps_as(types: Mapping[str, str]) -> Keeps:
    """Keeps what `are_kept`, with tensors that `types` name quantised to the types there."""

    def keeps(parts: Sequence[StoredRows]) -> Sequence[StoredRows]:
        chosen = [quantised(part, types.get(part.name, part.type)) for part in parts]
        return chosen if are_kept(chosen) else ()

    return keeps


def quantised(rows: StoredRows, name: str) -> StoredRows:
    """Plain rows as blocks of another type, made when they are asked for; rows of the very type.

    Their `blocks` raise `ModelError` for numbers that are not finite or too large.
    """
    if name == rows.type:
        return rows
    return replace(rows, type=name, blocks=partial(_blocks, rows, name))


def _blocks(rows: StoredRows, name: str, first: int, count: int) -> Array:
    width = rows.shape[1]
    made = np.empty((count, row_bytes(name, width)), np.uint8)
    step = max(1, _CHUNK_VALUES // width // PANEL) * PANEL
    for start in range(0, count, step):
        target = made[start : start + step]
        numbers = _numbers(rows.type, rows.blocks(first + start, len(target)))
        if not quantise(name, numbers, target):
            limit = f"its numbers must be finite and at most {LARGEST:,.0f} to become {name}"
            raise ModelError(rows.name, rows.type, limit)
        rows.release()
    return made


def _numbers(name: str, rows: Array) -> Array:
    """float32 of a plain type's bytes."""
    if name == "BF16":
        return (rows.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    with np.errstate(over="ignore"):  # what is no float32 is refused as too large
        return rows.view(f"f{int(name[1:]) // 8}").astype(np.float32)
