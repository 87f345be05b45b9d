"""Who attends to what in one step: prepared once and carried out by every layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from pagoda.kernels.array import Array


@dataclass(frozen=True, slots=True)
class AttentionTiling:
    """The attention of one step, the same for all layers with heads of one shape."""

    block_tables: Array
    """[sequences, blocks] int32"""
    positions: Array
    """[rows] int32"""
    tokens: Array
    """[any] int64: rows of the step, one after the other as items take them."""
    work: Array
    """[items, fields of `WorkItem`] int64. The first `num_parts` items take one split and leave a
    part for each token, which `merges` take up; the others finish their rows."""
    num_parts: int
    starts: Array
    """[rows] int64: a row's part for split s is number starts[row] + s."""
    merges: Array
    """[merged, fields of `Merge`] int64"""
    parts: Array
    """[parts, num_heads * (head_dim + 2)] float32, written."""
    most_rows: int
    """Query heads times tokens of the largest item."""

    def addresses(self) -> TilingAddresses:
        """As kernels take it; this has to be kept as long as those are used."""
        return TilingAddresses(
            block_tables=self.block_tables.ctypes.data,
            positions=self.positions.ctypes.data,
            tokens=self.tokens.ctypes.data,
            work=self.work.ctypes.data,
            starts=self.starts.ctypes.data,
            merges=self.merges.ctypes.data,
            parts=self.parts.ctypes.data,
            table_bytes=self.block_tables.strides[0],
            num_items=len(self.work),
            num_parts=self.num_parts,
            num_merges=len(self.merges),
            part_bytes=self.parts.shape[1] * 4,
            most_rows=self.most_rows,
        )


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


class Merge(NamedTuple):
    """A row of `AttentionTiling.merges`."""

    row: int
    first_part: int
    num_parts: int


class TilingAddresses(NamedTuple):
    """An `AttentionTiling`: addresses of its arrays, and numbers."""

    block_tables: int
    positions: int
    tokens: int
    work: int
    starts: int
    merges: int
    parts: int
    table_bytes: int
    num_items: int
    num_parts: int
    num_merges: int
    part_bytes: int
    most_rows: int
