"""Who attends to what in one step: prepared once and carried out by every layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numba import njit

from pagoda.kernels.array import Array
from pagoda.kernels.cpu.number import integers_at


@dataclass(frozen=True, slots=True)
class AttentionTiling:
    """The attention of one step, the same for all layers of a group with heads of one shape."""

    block_tables: Array
    """[sequences, blocks] int32"""
    windows: Array
    """[sequences, 2] int32: tokens that a row sees, its own included, and sinks before these"""
    positions: Array
    """[rows] int32"""
    sink_positions: Array | None
    """[rows] int32: where each row stands for its sinks; None: no row sees sinks apart."""
    slot_mapping: Array
    """[rows] int64: where each row's K and V are written"""
    tokens: Array
    """[any] int64: rows of the step, one after the other as items take them."""
    work: Array
    """[items, fields of `WorkItem`] int64. The first `num_parts` items take one split and leave a
    part for each token, which `merges` take up; the others finish their rows."""
    num_parts: int
    starts: Array
    """[rows] int64: a row's part for split s is number starts[row] + s; splits before a window
    have none."""
    merges: Array
    """[merged, fields of `Merge`] int64"""
    parts: Array
    """[parts, num_heads * (value_dim + 2)] float32, written."""
    most_rows: int
    """Query heads times tokens of the largest item."""
    in_turn: bool
    """Some items take more than one split, the longest first, and threads take them in turn; else
    each thread has a run of items."""

    def addresses(self) -> TilingAddresses:
        """As kernels take it; this has to be kept as long as those are used."""
        return TilingAddresses(
            block_tables=self.block_tables.ctypes.data,
            windows=self.windows.ctypes.data,
            positions=self.positions.ctypes.data,
            sink_positions=0 if self.sink_positions is None else self.sink_positions.ctypes.data,
            slot_mapping=self.slot_mapping.ctypes.data,
            tokens=self.tokens.ctypes.data,
            work=self.work.ctypes.data,
            starts=self.starts.ctypes.data,
            merges=self.merges.ctypes.data,
            parts=self.parts.ctypes.data,
            table_bytes=self.block_tables.strides[0],
            table_width=self.block_tables.shape[1],
            num_items=len(self.work),
            num_parts=self.num_parts,
            num_merges=len(self.merges),
            part_bytes=self.parts.shape[1] * 4,
            most_rows=self.most_rows,
            in_turn=int(self.in_turn),
        )


class GroupTilings:
    """The tilings of all groups of layers, as a step takes them."""

    def __init__(self, tilings: Mapping[int, AttentionTiling]) -> None:
        """`tilings`: by the numbers of those groups that have such heads."""
        self._kept = tilings
        shape = max(tilings) + 1, len(TilingAddresses._fields)
        self.addresses = np.zeros(shape, np.int64)
        """[groups, fields of `TilingAddresses`]"""
        for group, tiling in tilings.items():
            self.addresses[group] = tiling.addresses()
        self.most_rows = max(tiling.most_rows for tiling in tilings.values())
        self.has_sinks = any(tiling.sink_positions is not None for tiling in tilings.values())


class WorkItem(NamedTuple):
    """A row of `AttentionTiling.work`."""

    sequence: int
    first: int
    """Index into `tokens`."""
    num_tokens: int
    first_split: int
    end_split: int
    first_head: int
    end_head: int
    takes_sinks: int
    """1: the sinks come first."""


class Merge(NamedTuple):
    """A row of `AttentionTiling.merges`."""

    row: int
    first_part: int
    num_parts: int


class TilingAddresses(NamedTuple):
    """An `AttentionTiling`: addresses of its arrays, and numbers."""

    block_tables: int
    windows: int
    positions: int
    sink_positions: int
    slot_mapping: int
    tokens: int
    work: int
    starts: int
    merges: int
    parts: int
    table_bytes: int
    """From one sequence's to the next."""
    table_width: int
    """Entries of a sequence."""
    num_items: int
    num_parts: int
    num_merges: int
    part_bytes: int
    most_rows: int
    in_turn: int


_ITEM_FIELDS = len(WorkItem._fields)


@njit(error_model="numpy")
def work_item(tiling: TilingAddresses, item: int) -> WorkItem:
    """One of `work`, by its number."""
    return WorkItem(*integers_at(tiling.work + item * _ITEM_FIELDS * 8, _ITEM_FIELDS))
