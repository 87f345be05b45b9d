"""How products read K and V in pages: as plain numbers, or as codes decoded on the way.

A reader hands a tile its groups of four bytes, one float32 or two bfloat16: pointers to them, or
the groups themselves in registers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from llvmlite import ir
from numba.core import cgutils

from pagoda.kernels.cpu.code_vectors import Levels, across, along, pairs_of
from pagoda.kernels.cpu.number import constant
from pagoda.kernels.cpu.tile import Chunks, Columns, chunks, vector_lanes
from pagoda.kernels.cpu.vector import (
    BYTE,
    I32,
    LANES,
    after,
    index,
    load_vector,
    prefetch,
)
from pagoda.kernels.vector_code import CHUNK, PLANES, TABLE_SIZE, Run, VectorCode

_LINE_BYTES = 64
Add = Callable[[Any, Sequence[Any]], None]
"""Takes the number of a group, and it of every vector of columns."""


class Piece(NamedTuple):
    """Columns of a value vector that are read alike."""

    chunks: Chunks
    run: Run | None
    """Those of codes; None: plain numbers."""


class KeyReader(Protocol):
    """Keys of some blocks, tokens side by side in columns."""

    def open(self, builder: Any, head: Any, tables: Any) -> None:
        """Read what serves a whole tile of a head."""
        ...

    def for_each_group(
        self, builder: Any, bases: Sequence[Any], asked: Sequence[Any], head: Any, start: Any,
        columns: Columns, add: Add,
    ) -> None:  # fmt: skip
        """Call `add` for the groups of a key in order: of the columns from `start` on of each base.

        bases, asked: pointers to the first head of blocks; the latter are asked from memory.
        """
        ...


class ValueReader(Protocol):
    """Values of a block, token by token, their numbers side by side in columns."""

    def pieces(self) -> Iterator[Piece]:
        """All columns."""
        ...

    def open(self, builder: Any, head: Any, tables: Any) -> None:
        """Read what serves a whole tile of a head."""
        ...

    def groups(
        self, builder: Any, base: Any, ahead: Any, head: Any, group: Any, start: Any, piece: Piece,
        columns: Columns,
    ) -> list[Any]:  # fmt: skip
        """Group `group` of tokens in the block at `base`: of the columns from `start` on.

        ahead: a pointer to what is asked from memory likewise, or None.
        """
        ...


class PlainKeys:
    """See `KeyReader`: [num_heads, head_dim / group, block_size, group]."""

    def __init__(self, depth: int, block_size: int) -> None:
        """depth: groups of a key."""
        self._depth, self._block_size = depth, block_size

    def open(self, builder: Any, head: Any, tables: Any) -> None:
        """Nothing."""

    def for_each_group(
        self, builder: Any, bases: Sequence[Any], asked: Sequence[Any], head: Any, start: Any,
        columns: Columns, add: Add,
    ) -> None:  # fmt: skip
        """See `KeyReader`."""
        depth, size = self._depth, self._block_size
        begin = builder.add(builder.mul(head, index(depth * size)), start)
        with cgutils.for_range(builder, index(depth)) as loop:
            line = builder.add(begin, builder.mul(loop.index, index(size)))
            add(
                loop.index,
                [after(builder, base, line, column) for base in bases for column, _ in columns],
            )
            for base in asked:
                for column, _ in columns:
                    prefetch(builder, after(builder, base, line, column))


class PlainValues:
    """See `ValueReader`: [num_heads, block_size / group, head_dim, group]."""

    def __init__(self, head_dim: int, groups_per_block: int) -> None:
        self._head_dim, self._per_block = head_dim, groups_per_block

    def pieces(self) -> Iterator[Piece]:
        """As many vectors as a tile takes."""
        return (Piece(each, None) for each in chunks(vector_lanes(self._head_dim)))

    def open(self, builder: Any, head: Any, tables: Any) -> None:
        """Nothing."""

    def groups(
        self, builder: Any, base: Any, ahead: Any, head: Any, group: Any, start: Any, piece: Piece,
        columns: Columns,
    ) -> list[Any]:  # fmt: skip
        """See `ValueReader`."""
        width = self._head_dim
        head_start = builder.add(builder.mul(head, index(width * self._per_block)), start)
        line = builder.add(head_start, builder.mul(group, index(width)))
        if ahead is not None:
            for column, _ in columns:
                prefetch(builder, after(builder, ahead, line, column))
        return [after(builder, base, line, column) for column, _ in columns]


class CodedKeys:
    """See `KeyReader`: [num_heads, bytes of a key's codes, block_size]."""

    def __init__(self, code: VectorCode, block_size: int, paired: bool) -> None:
        self._code, self._block_size, self._paired = code, block_size, paired
        self._levels: Levels | None = None

    def open(self, builder: Any, head: Any, tables: Any) -> None:
        """The head's tables of levels."""
        self._levels = Levels(builder, self._code, _table_of(builder, head, tables))

    def for_each_group(
        self, builder: Any, bases: Sequence[Any], asked: Sequence[Any], head: Any, start: Any,
        columns: Columns, add: Add,
    ) -> None:  # fmt: skip
        """See `KeyReader`."""
        size = self._block_size
        begin = builder.add(builder.mul(head, index(self._code.code_bytes * size)), start)
        for run in self._code.runs:
            if run.width == 0:
                continue
            rows = 2 * run.width
            with cgutils.for_range(builder, index(run.num_chunks)) as loop:
                place = builder.add(
                    builder.add(begin, index(run.start * size)),
                    builder.mul(loop.index, index(rows * size)),
                )
                for base in asked:
                    for ahead in range(0, rows * size, _LINE_BYTES):
                        prefetch(builder, _bytes_at(builder, base, place, ahead))
                chunk = builder.add(loop.index, index(run.first))
                self._add_chunk(builder, bases, place, chunk, run.width, columns, add)

    def _add_chunk(
        self, builder: Any, bases: Sequence[Any], place: Any, chunk: Any, width: int,
        columns: Columns, add: Add,
    ) -> None:  # fmt: skip
        """The groups of a chunk: byte by byte of its lowest plane, and of each its parts."""
        pack, lowest = 1 + self._paired, PLANES[width][0]
        begin = builder.mul(chunk, index(CHUNK))
        steps = index(2 * lowest)
        with cgutils.for_range_slice(builder, index(0), steps, index(pack)) as (first, _):
            for part in range(8 // lowest):
                read = [
                    self._group(builder, base, place, column, lanes, width, first, part)
                    for base in bases
                    for column, lanes in columns
                ]
                number = builder.add(builder.add(begin, first), index(part * 2 * lowest))
                add(builder.udiv(number, index(pack)), read)

    def _group(
        self, builder: Any, base: Any, place: Any, column: int, lanes: int, width: int, first: Any,
        part: int,
    ) -> Any:  # fmt: skip
        def row(byte: Any) -> Any:
            offset = builder.add(place, builder.mul(byte, index(self._block_size)))
            source = _bytes_at(builder, base, offset, column)
            return load_vector(builder, source, ir.VectorType(BYTE, lanes))

        assert self._levels is not None
        found = []
        for each in range(1 + self._paired):
            codes = across(builder, width, builder.add(first, index(each)), part, row)
            found.append(self._levels.floats(codes, width))
        return _as_group(builder, found)


class CodedValues:
    """See `ValueReader`: [num_heads, block_size, bytes of a value's codes]."""

    def __init__(self, code: VectorCode, block_size: int, paired: bool) -> None:
        self._code, self._block_size, self._paired = code, block_size, paired
        self._levels: Levels | None = None

    def pieces(self) -> Iterator[Piece]:
        """Chunks of one width, as many as a tile takes."""
        for run in self._code.runs:
            for each in chunks([LANES] * run.num_chunks):
                column = run.first * CHUNK + each.column
                yield Piece(Chunks(column, each.number, each.lanes), run)

    def open(self, builder: Any, head: Any, tables: Any) -> None:
        """The head's tables of levels."""
        self._levels = Levels(builder, self._code, _table_of(builder, head, tables))

    def groups(
        self, builder: Any, base: Any, ahead: Any, head: Any, group: Any, start: Any, piece: Piece,
        columns: Columns,
    ) -> list[Any]:  # fmt: skip
        """See `ValueReader`."""
        run, size, pack = piece.run, self._code.code_bytes, 2 if self._paired else 1
        assert run is not None
        if run.width == 0:
            return [constant(ir.VectorType(I32, lanes), 0) for _, lanes in columns]
        token = builder.mul(group, index(pack))
        token = builder.add(token, builder.mul(head, index(self._block_size)))
        chunk = builder.udiv(builder.sub(start, index(run.first * CHUNK)), index(CHUNK))
        place = builder.add(
            builder.add(builder.mul(token, index(size)), index(run.start)),
            builder.mul(chunk, index(2 * run.width)),
        )
        if ahead is not None:
            prefetch(builder, _bytes_at(builder, ahead, place, 0))
        return [
            self._group(builder, base, place, column // CHUNK * 2 * run.width, run.width)
            for column, _ in columns
        ]

    def _group(self, builder: Any, base: Any, place: Any, offset: int, width: int) -> Any:
        assert self._levels is not None
        found = []
        for token in range(1 + self._paired):
            source = _bytes_at(builder, base, place, offset + token * self._code.code_bytes)
            found.append(self._levels.floats(along(builder, width, source), width))
        return _as_group(builder, found)


def key_reader(code: VectorCode | None, head_dim: int, block_size: int, paired: bool) -> KeyReader:
    """For codes, or for plain numbers: bfloat16, which come in pairs, or float32."""
    if code is None:
        return PlainKeys(head_dim // (1 + paired), block_size)
    return CodedKeys(code, block_size, paired)


def value_reader(
    code: VectorCode | None, head_dim: int, block_size: int, paired: bool
) -> ValueReader:
    """As `key_reader`."""
    if code is None:
        return PlainValues(head_dim, block_size // (1 + paired))
    return CodedValues(code, block_size, paired)


def _as_group(builder: Any, found: Sequence[Any]) -> Any:
    if len(found) == 2:
        return pairs_of(builder, *found)
    return builder.bitcast(found[0], ir.VectorType(I32, found[0].type.count))


def _table_of(builder: Any, head: Any, tables: Any) -> Any:
    start = builder.inttoptr(tables, BYTE.as_pointer())
    return builder.gep(start, [builder.mul(head, index(TABLE_SIZE))])


def _bytes_at(builder: Any, base: Any, place: Any, offset: int) -> Any:
    start = builder.bitcast(base, BYTE.as_pointer())
    return builder.gep(start, [builder.add(place, index(offset))])
