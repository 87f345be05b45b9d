"""The register tile that every product is made of.

    out[row, column] = Σ a[row, g] · b[g, column]      in order of g

Numbers along the summed axis come in groups of four bytes: one float32, or two bfloat16, which
one instruction multiplies and adds where a CPU can. Both operands keep a group together, a along
its rows and b in its columns. A sum's order is that of g however a product is cut into tiles, so a
result's bits depend on its own row and column alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from itertools import groupby, zip_longest
from typing import Any, NamedTuple

from llvmlite import ir
from numba.core import cgutils

from pagoda.kernels.cpu.number import constant
from pagoda.kernels.cpu.vector import (
    I32,
    LANES,
    UNIT,
    factors,
    floats,
    index,
    keep_loop,
    load_vector,
    multiply_add,
    read_again,
    spread,
    spread_first,
    store_vector,
)


def most_rows(num_vectors: int) -> int:
    """Rows of the largest tile with so many vectors in a row.

    Beside its sums, registers hold a row of b and a factor.
    """
    sums = min(UNIT.accumulators, UNIT.registers - num_vectors - 1)
    return max(1, sums // num_vectors)


_LEAST_ROWS = 6
MOST_VECTORS = 4 if most_rows(4) >= _LEAST_ROWS else 1
"""In a row of a tile. Where registers hold fewer sums, rows come first: b is read from further away
than a, and the more rows a tile has the less often."""

_FEW_ROWS = min(4, most_rows(2))
"""So few rows read b again for each row, where it is in memory, as an operand of the instruction
that multiplies. Memory is the limit then, and a processor sees further ahead through fewer
instructions."""

Columns = list[tuple[int, int]]
"""Vectors of a row: the column that each starts with, and its lanes."""


class Tile:
    """Sums of a few rows and columns, which stay in registers while they grow."""

    def __init__(self, builder: Any, paired: bool, num_rows: int, lanes: Sequence[int]) -> None:
        """`paired`: a group is two bfloat16; `lanes`: columns in each vector of a row.

        The sums begin at zero.
        """
        self._builder, self._paired, self._lanes = builder, paired, lanes
        # Cells on the stack, which LLVM turns into registers.
        self._cells = [
            [cgutils.alloca_once_value(builder, constant(floats(n), 0.0)) for n in lanes]
            for _ in range(num_rows)
        ]

    def load(self, rows: Sequence[Any]) -> None:
        """Begin with the sums that `store` has written."""
        for pointer, cells in zip(rows, self._cells, strict=True):
            column = 0
            for cell, lanes in zip(cells, self._lanes, strict=True):
                source = self._builder.gep(pointer, [index(column)])
                self._builder.store(load_vector(self._builder, source, floats(lanes)), cell)
                column += lanes

    def part(self, first: int, count: int) -> Tile:
        """A tile of some vectors of each row, from number `first` on. It shares its sums with this
        one."""
        part, chosen = copy(self), slice(first, first + count)
        part._lanes, part._cells = self._lanes[chosen], [each[chosen] for each in self._cells]
        return part

    def add(self, rows: Sequence[Any], columns: Sequence[Any], mask: Any = None) -> None:
        """Add the products of one group: a pointer for each row, and one for each vector of b, or
        that vector of int32 itself.

        `mask`, an int32, is applied to the groups of b.
        """
        keep_loop(self._builder)
        makers = zip_longest(*(factors(self._paired, lanes) for lanes in self._lanes))
        for turn, each in enumerate(makers):
            if turn > 0:  # one half of all pairs, then the other: registers do not hold both
                read_again(self._builder)
            self._add_factors(rows, columns, mask, each)

    def _add_factors(
        self, rows: Sequence[Any], columns: Sequence[Any], mask: Any, makers: Sequence[Any]
    ) -> None:
        """Add the products of what `makers`, one for each vector or None, make of the groups.

        The instruction that multiplies takes one factor from memory itself: b, where it is there.
        If b is in registers, with AVX-512 it is the number of a row, which all lanes get.
        """
        builder = self._builder
        read = self._load(columns, mask, makers)
        is_in_memory = any(isinstance(each.type, ir.PointerType) for each in columns)
        for number, (pointer, cells) in enumerate(zip(rows, self._cells, strict=True)):
            if is_in_memory and number > 0 and len(rows) <= _FEW_ROWS:
                read_again(builder)
                read = self._load(columns, mask, makers)
            value = builder.load(pointer, align=2)
            for cell, y, make, lanes in zip(cells, read, makers, self._lanes, strict=True):
                if make is None:
                    continue
                if not is_in_memory and cell is not cells[0]:
                    read_again(builder)  # or LLVM spreads it into a register first
                    value = builder.load(pointer, align=2)
                x = make(builder, spread_first(builder, value, lanes))
                pair = (x, y) if is_in_memory else (y, x)
                builder.store(multiply_add(builder, *pair, builder.load(cell)), cell)

    def _load(self, columns: Sequence[Any], mask: Any, makers: Sequence[Any]) -> list[Any]:
        """Factors from b's groups, or None where `makers` has none."""
        return [
            None if make is None else make(self._builder, self._load_groups(source, lanes, mask))
            for source, lanes, make in zip(columns, self._lanes, makers, strict=True)
        ]

    def _load_groups(self, source: Any, lanes: int, mask: Any) -> Any:
        builder, groups = self._builder, source
        if isinstance(source.type, ir.PointerType):
            groups = load_vector(builder, source, ir.VectorType(I32, lanes))
        return groups if mask is None else builder.and_(groups, spread(builder, mask, lanes))

    def store(self, rows: Sequence[Any]) -> None:
        """Write the sums. rows: a pointer to the first float32 of each."""
        for pointer, cells in zip(rows, self._cells, strict=True):
            column = 0
            for cell, lanes in zip(cells, self._lanes, strict=True):
                target = self._builder.gep(pointer, [index(column)])
                store_vector(self._builder, self._builder.load(cell), target)
                column += lanes


def vector_lanes(columns: int) -> list[int]:
    """Cut a row into vectors: as many of sixteen as fit, then halves of halves."""
    lanes = [LANES] * (columns // LANES)
    rest, width = columns % LANES, LANES // 2
    while rest:
        if rest >= width:
            lanes.append(width)
            rest -= width
        width //= 2
    return lanes


def for_each_row_count(builder: Any, rows: Any, most: int, emit: Callable[[int], None]) -> None:
    """Branch to the code that `emit` writes for 1 … `most` rows; others do nothing."""
    done = builder.append_basic_block("rows.done")
    switch = builder.switch(rows, done)
    for count in range(1, most + 1):
        block = builder.append_basic_block(f"rows.{count}")
        switch.add_case(index(count), block)
        builder.position_at_end(block)
        emit(count)
        builder.branch(done)
    builder.position_at_end(done)


def for_each_tile(builder: Any, rows: Any, most: int, emit: Callable[[int, Any], None]) -> None:
    """Cut rows evenly into tiles of up to `most`; `emit` gets a tile's rows and its first."""
    count = builder.udiv(builder.add(rows, index(most - 1)), index(most))
    with cgutils.for_range(builder, count) as tiles:
        number = tiles.index
        first, end = (
            builder.udiv(builder.mul(rows, each), count)
            for each in (number, builder.add(number, index(1)))
        )
        for_each_row_count(builder, builder.sub(end, first), most, lambda n: emit(n, first))


def blocks_at_once(block_size: int) -> int:
    """Blocks whose tokens are scored together."""
    return max(1, MOST_VECTORS // len(vector_lanes(block_size)))


def vectors(lanes: list[int]) -> Columns:
    return [(sum(lanes[:i]), lanes[i]) for i in range(len(lanes))]


class Chunks(NamedTuple):
    """Pieces of a row that are alike, side by side."""

    column: int
    """That the first of them starts with."""
    number: int
    lanes: list[int]
    """Of each."""


def chunks(lanes: list[int]) -> list[Chunks]:
    """Vectors of a row, as evenly as they can be shared among tiles."""
    count = -(-len(lanes) // MOST_VECTORS)
    size = -(-len(lanes) // count)
    pieces = [lanes[i : i + size] for i in range(0, len(lanes), size)]
    column, alike = 0, []
    for piece, group in groupby(pieces):
        number = len(list(group))
        alike.append(Chunks(column, number, piece))
        column += number * sum(piece)
    return alike
