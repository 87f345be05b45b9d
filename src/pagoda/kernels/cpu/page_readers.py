"""How products read K and V in pages: as plain numbers, or as codes decoded on the way.

A reader hands a tile its groups of four bytes, one float32 or two bfloat16, or whole numbers
(`whole_keys`): pointers to them, or the groups themselves in registers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple, Protocol

from llvmlite import ir
from numba.core import cgutils

from pagoda.kernels.cpu.level_tables import HEAD_TABLE_BYTES
from pagoda.kernels.cpu.number import constant
from pagoda.kernels.cpu.tile import MOST_VECTORS, Chunks, Columns, chunks, vector_lanes
from pagoda.kernels.cpu.vector import BYTE, I32, LANES, LINE_BYTES, after, index, pointer, prefetch
from pagoda.kernels.vector_code import CHUNK, Run, VectorCode

Add = Callable[[Any, Sequence[Any]], None]
"""Takes the number of a group, and it of every vector of columns."""


class Read(NamedTuple):
    """Groups of tokens that lie one after the other, of some columns."""

    before: int
    """Vectors of columns before these."""
    groups: list[list[Any]]
    """[groups, vectors]"""


class Source(NamedTuple):
    """A chunk of keys of a few tokens: rows of bytes."""

    first: Any
    """Pointer to the first row's byte of the first token."""
    lanes: int
    """Tokens."""


class Piece(NamedTuple):
    """Columns of a value vector that are read alike."""

    chunks: Chunks
    widths: tuple[int, ...] = ()
    """Of each of its vectors, where they are codes."""
    start: int = 0
    """Bytes of a vector's codes before the first of its chunks."""


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

    @property
    def at_once(self) -> int:
        """Groups of tokens that are read together.

        More than one: whatever the block holds, it is read as finite numbers.
        """
        ...

    def pieces(self) -> Iterator[Piece]:
        """All columns."""
        ...

    def open(self, builder: Any, head: Any, tables: Any) -> None:
        """Read what serves a whole tile of a head."""
        ...

    def groups(
        self, builder: Any, base: Any, ahead: Any, head: Any, group: Any, start: Any, piece: Piece,
        columns: Columns,
    ) -> Iterator[Read]:  # fmt: skip
        """Groups of tokens in the block at `base` from number `group` on: of the columns from
        `start` on, all of them or some at a time. Instructions are written while it is iterated:
        each is used before the next.

        ahead: a pointer to what is asked from memory likewise, or None.
        """
        ...


class KeyDecoder(Protocol):
    """Makes groups of the codes of keys that lie as `vector_code` says."""

    @property
    def groups(self) -> int:
        """Of a chunk."""
        ...

    def open(self, builder: Any, table: Any) -> None:
        """Read a head's table, as `level_tables` lays it out, for a whole tile."""
        ...

    def keys(
        self, builder: Any, width: int, sources: Sequence[Source], stride: int, group: Any, add: Add
    ) -> None:
        """Call `add` for the groups of a chunk in order; `group` is the first.

        stride: bytes from a row of tokens to the next.
        """
        ...

    def zeros(self, lanes: int) -> Any:
        """A group of so many tokens' numbers that no bit is kept of."""
        ...


class KeyPart(NamedTuple):
    """Chunks of keys, and what decodes them."""

    run: Run
    decoder: KeyDecoder


class ValueDecoder(Protocol):
    """As `KeyDecoder`, of values."""

    @property
    def at_once(self) -> int:
        """Groups of tokens that are decoded together; see `ValueReader`."""
        ...

    def open(self, builder: Any, table: Any) -> None:
        """See `KeyDecoder`."""
        ...

    def values(self, builder: Any, width: int, planes: Sequence[Any]) -> list[Any]:
        """The next groups of tokens, of a chunk; planes: pointers to their bytes of each plane."""
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

    @property
    def at_once(self) -> int:
        """See `ValueReader`."""
        return 1

    def pieces(self) -> Iterator[Piece]:
        """As many vectors as a tile takes."""
        return (Piece(each) for each in chunks(vector_lanes(self._head_dim)))

    def open(self, builder: Any, head: Any, tables: Any) -> None:
        """Nothing."""

    def groups(
        self, builder: Any, base: Any, ahead: Any, head: Any, group: Any, start: Any, piece: Piece,
        columns: Columns,
    ) -> Iterator[Read]:  # fmt: skip
        """See `ValueReader`."""
        width = self._head_dim
        head_start = builder.add(builder.mul(head, index(width * self._per_block)), start)
        line = builder.add(head_start, builder.mul(group, index(width)))
        if ahead is not None:
            for column, _ in columns:
                prefetch(builder, after(builder, ahead, line, column))
        yield Read(0, [[after(builder, base, line, column) for column, _ in columns]])


class CodedKeys:
    """See `KeyReader`: [num_heads, bytes of a key's codes, block_size]."""

    def __init__(self, code: VectorCode, block_size: int, parts: Sequence[KeyPart]) -> None:
        """parts: all chunks of the code in order."""
        self._code, self._block_size, self._parts = code, block_size, parts

    def open(self, builder: Any, head: Any, tables: Any) -> None:
        """The head's table of levels."""
        table = _table_of(builder, head, tables)
        for decoder in dict.fromkeys(part.decoder for part in self._parts):
            decoder.open(builder, table)

    def for_each_group(
        self, builder: Any, bases: Sequence[Any], asked: Sequence[Any], head: Any, start: Any,
        columns: Columns, add: Add,
    ) -> None:  # fmt: skip
        """See `KeyReader`."""
        size, first = self._block_size, 0
        begin = builder.add(builder.mul(head, index(self._code.code_bytes * size)), start)
        for run, decoder in self._parts:
            group, first = index(first), first + run.num_chunks * decoder.groups
            if run.width == 0:
                lanes = [lanes for _ in bases for _, lanes in columns]
                _add_nothing(builder, run, decoder, lanes, group, add)
                continue
            rows = 2 * run.width
            with cgutils.for_range(builder, index(run.num_chunks)) as loop:
                place = builder.add(
                    builder.add(begin, index(run.start * size)),
                    builder.mul(loop.index, index(rows * size)),
                )
                for base in asked:
                    _ask(builder, base, place, rows * size)
                sources = [
                    Source(_bytes_at(builder, base, place, column), lanes)
                    for base in bases
                    for column, lanes in columns
                ]
                own = builder.add(group, builder.mul(loop.index, index(decoder.groups)))
                decoder.keys(builder, run.width, sources, size, own, add)


def _add_nothing(
    builder: Any, run: Run, decoder: KeyDecoder, lanes: Sequence[int], group: Any, add: Add
) -> None:
    """Numbers that no bit is kept of are 0."""
    with cgutils.for_range(builder, index(run.num_chunks * decoder.groups)) as loop:
        add(builder.add(group, loop.index), [decoder.zeros(each) for each in lanes])


class CodedValues:
    """See `ValueReader`: [num_heads, planes of all chunks, block_size, bytes of a plane]."""

    def __init__(
        self, code: VectorCode, block_size: int, paired: bool, decoder: ValueDecoder
    ) -> None:
        self._code, self._block_size, self._decoder = code, block_size, decoder
        self._tokens = (1 + paired) * decoder.at_once

    @property
    def at_once(self) -> int:
        """See `ValueReader`."""
        return self._decoder.at_once

    def pieces(self) -> Iterator[Piece]:
        """As many chunks as a tile takes; neighbours of the same widths in one."""
        widths, first, start = self._code.widths, 0, 0
        cut = [widths[i : i + MOST_VECTORS] for i in range(0, len(widths), MOST_VECTORS)]
        for each, alike in groupby(cut):
            count = len(list(alike))
            yield Piece(Chunks(first * CHUNK, count, [LANES] * len(each)), each, start)
            first, start = first + count * len(each), start + count * sum(each) * CHUNK // 8

    def open(self, builder: Any, head: Any, tables: Any) -> None:
        """The head's table of levels."""
        self._decoder.open(builder, _table_of(builder, head, tables))

    def groups(
        self, builder: Any, base: Any, ahead: Any, head: Any, group: Any, start: Any, piece: Piece,
        columns: Columns,
    ) -> Iterator[Read]:  # fmt: skip
        """See `ValueReader`."""
        size, piece_bytes = self._block_size, sum(piece.widths) * CHUNK // 8
        columns_before = builder.sub(start, index(piece.chunks.column))
        number = builder.udiv(columns_before, index(CHUNK * len(piece.widths)))
        place = builder.add(
            builder.mul(head, index(self._code.code_bytes * size)),
            builder.add(index(piece.start * size), builder.mul(number, index(piece_bytes * size))),
        )
        token = builder.mul(group, index(self._tokens // self.at_once))
        if ahead is not None:  # as large a part of the piece as these tokens are of the block
            part = builder.add(place, builder.mul(token, index(piece_bytes)))
            _ask(builder, ahead, part, piece_bytes * self._tokens)
        for chunk, width in enumerate(piece.widths):
            before = sum(piece.widths[:chunk]) * CHUNK // 8
            found = self._of_chunk(builder, base, place, token, before, width)
            yield Read(chunk, [[each] for each in found])

    def _of_chunk(
        self, builder: Any, base: Any, place: Any, token: Any, before: int, width: int
    ) -> list[Any]:
        """before: bytes of the codes of one token in the chunks before it."""
        if width == 0:
            return [constant(ir.VectorType(I32, LANES), 0)] * self.at_once
        planes = []
        for plane in self._code.planes(width):
            offset = builder.add(place, builder.mul(token, index(plane.num_bytes)))
            start = (before + plane.start) * self._block_size
            planes.append(_bytes_at(builder, base, offset, start))
        return self._decoder.values(builder, width, planes)


class Pages:
    """Where blocks of a cache lie."""

    def __init__(self, builder: Any, table: Any, stride: Any) -> None:
        self._builder, self._stride = builder, stride
        self._ids = pointer(builder, table)

    def at(self, address: Any, first: Any, last: Any, number: int) -> Any:
        """Pointer to the address that belongs to block table[first + number].

        Beyond `last` it is the block before that.
        """
        builder = self._builder
        entry, final = builder.add(first, index(number)), builder.sub(last, index(1))
        inside = builder.icmp_signed("<", entry, final)
        entry = builder.select(inside, entry, final)
        block = builder.sext(builder.load(builder.gep(self._ids, [entry])), index(0).type)
        return pointer(builder, builder.add(address, builder.mul(block, self._stride)))


def _ask(builder: Any, base: Any, place: Any, num_bytes: int) -> None:
    """Ask for so many bytes from memory."""
    for line in range(0, num_bytes, LINE_BYTES):
        prefetch(builder, _bytes_at(builder, base, place, line))


def _table_of(builder: Any, head: Any, tables: Any) -> Any:
    start = builder.inttoptr(tables, BYTE.as_pointer())
    return builder.gep(start, [builder.mul(head, index(HEAD_TABLE_BYTES))])


def _bytes_at(builder: Any, base: Any, place: Any, offset: int) -> Any:
    start = builder.bitcast(base, BYTE.as_pointer())
    return builder.gep(start, [builder.add(place, index(offset))])
