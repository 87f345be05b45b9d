"""How products of whole numbers read K in pages: as levels, or as codes decoded on the way.

A reader hands a `WholeTile` its groups: pointers to them, or vectors in registers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir
from numba.core import cgutils

from pagoda.kernels.cpu.chunk_keys import chunk_keys
from pagoda.kernels.cpu.level_tables import TABLE_ENTRIES
from pagoda.kernels.cpu.long_vectors import (
    BYTES,
    LANE_BY_LANE,
    ROWS,
    SHORTS,
    look_up_bytes,
)
from pagoda.kernels.cpu.number import constant
from pagoda.kernels.cpu.page_readers import Add, KeyPart, Source
from pagoda.kernels.cpu.tile import Columns
from pagoda.kernels.cpu.vector import (
    BYTE,
    after,
    index,
    lane_numbers,
    load_vector,
    prefetch,
)
from pagoda.kernels.cpu.whole_form import RAISED_BY, WholeForm
from pagoda.kernels.vector_code import CHUNK, Run, VectorCode


class PlainLevels:
    """See `KeyReader`: [num_heads, groups, block_size] groups of a `WholeForm`."""

    def __init__(self, form: WholeForm, block_size: int) -> None:
        self._form, self._block_size = form, block_size

    def open(self, builder: Any, head: Any, tables: Any) -> None:
        """Nothing."""

    def for_each_group(
        self, builder: Any, bases: Sequence[Any], asked: Sequence[Any], head: Any, start: Any,
        columns: Columns, add: Add,
    ) -> None:  # fmt: skip
        """See `KeyReader`."""
        size, count, num_pairs = self._block_size, self._form.num_groups, self._form.num_pairs
        begin = builder.add(builder.mul(head, index(count * size)), start)
        for first, end, kind in ((0, num_pairs, SHORTS), (num_pairs, count, BYTES)):
            loop = cgutils.for_range_slice(builder, index(first), index(end), index(1))
            with loop as (group, _):
                line = builder.add(begin, builder.mul(group, index(size)))
                places = [after(builder, each, line, at) for each in bases for at, _ in columns]
                add(group, [builder.bitcast(each, kind.as_pointer()) for each in places])
                for base in asked:
                    for column, _ in columns:
                        prefetch(builder, after(builder, base, line, column))


class LevelDecoder:
    """See `KeyDecoder`: levels of chunks of wide numbers, or of others."""

    def __init__(self, code: VectorCode, is_wide: bool) -> None:
        self._code, self._is_wide = code, is_wide
        self.groups = CHUNK // (2 if is_wide else 4)
        self._tables: dict[int, Any] = {}

    def open(self, builder: Any, table: Any) -> None:
        """See `KeyDecoder`: [64] int8 of each width. Fewer are repeated, so that bits above a
        code's do not count."""
        for width in set(self._code.widths) - {0}:
            count = min(2 ** self._code.table_bits(width), TABLE_ENTRIES)
            place = builder.gep(table, [index(self._code.table_place(width))])
            levels = load_vector(builder, place, ir.VectorType(BYTE, count))
            entries = lane_numbers([entry % count for entry in range(TABLE_ENTRIES)])
            levels = builder.shuffle_vector(levels, levels, entries)
            if not self._is_wide:
                levels = builder.xor(levels, constant(BYTES, RAISED_BY))
            self._tables[width] = levels

    def keys(
        self, builder: Any, width: int, sources: Sequence[Source], stride: int, group: Any, add: Add
    ) -> None:
        """See `KeyDecoder`: in ascending order."""
        chunks = [
            chunk_keys(builder, self._code, width, source.first, stride, LANE_BY_LANE)
            for source in sources
        ]
        for number in range(0, CHUNK, ROWS):
            table = self._tables[width]
            fours = [look_up_bytes(builder, table, each.codes(number)) for each in chunks]
            if not self._is_wide:
                add(builder.add(group, index(number // 4)), fours)
                continue
            for half in (0, 1):
                pairs = [_pairs(builder, each, half) for each in fours]
                add(builder.add(group, index(number // 2 + half)), pairs)

    def zeros(self, lanes: int) -> Any:
        """See `KeyDecoder`."""
        return constant(SHORTS, 0) if self._is_wide else constant(BYTES, RAISED_BY)


def _pairs(builder: Any, fours: Any, half: int) -> Any:
    """Two of four rows that lie lane by lane, [32] int16: those in lower bytes of shorts first."""
    shorts, byte = builder.bitcast(fours, SHORTS), constant(SHORTS, 8)
    if half == 0:
        shorts = builder.shl(shorts, byte)
    return builder.ashr(shorts, byte)


def level_parts(code: VectorCode, form: WholeForm) -> list[KeyPart]:
    """All chunks of keys that meet a form's queries."""
    wide, narrow = LevelDecoder(code, is_wide=True), LevelDecoder(code, is_wide=False)
    parts = []
    for run in code.runs:
        before, after_those = _cut(run, form.wide // CHUNK)
        parts += [KeyPart(before, wide), KeyPart(after_those, narrow)]
    return [part for part in parts if part.run.num_chunks > 0]


def _cut(run: Run, chunk: int) -> tuple[Run, Run]:
    """Its chunks before that one, and the others."""
    count = min(max(chunk - run.first, 0), run.num_chunks)
    start = run.start + count * run.width * CHUNK // 8
    return (
        run._replace(num_chunks=count),
        Run(run.first + count, run.num_chunks - count, run.width, start),
    )
