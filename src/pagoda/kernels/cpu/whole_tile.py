"""The register tile of queries that are whole numbers: as `tile.Tile`, and its sums are exact.

Groups of keys are vectors of pairs, `SHORTS`, or of fours, `BYTES` (`whole_form`).
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Any

from llvmlite import ir
from numba.core import cgutils

from pagoda.kernels.cpu.byte_products import add_fours
from pagoda.kernels.cpu.long_vectors import BYTES
from pagoda.kernels.cpu.vector import (
    LANES,
    floats,
    index,
    instruction,
    keep_loop,
    load_vector,
    read_again,
    spread,
    store_vector,
)
from pagoda.kernels.cpu.whole_numbers import WHOLE


class WholeTile:
    """Sums of a few rows and vectors of columns, which stay in registers while they grow."""

    def __init__(self, builder: Any, starts: Sequence[Any], num_vectors: int) -> None:
        """starts: for each row a pointer to the int32 that its sums begin with."""
        self._builder = builder
        self._cells = [
            [cgutils.alloca_once_value(builder, first) for _ in range(num_vectors)]
            for first in (spread(builder, builder.load(start), LANES) for start in starts)
        ]

    def add(self, rows: Sequence[Any], columns: Sequence[Any]) -> None:
        """Add the products of one group: a pointer for each row, and for each vector of columns one
        to its groups, or these themselves."""
        builder = self._builder
        keep_loop(builder)
        is_in_memory = isinstance(columns[0].type, ir.PointerType)
        kind = columns[0].type.pointee if is_in_memory else columns[0].type
        if is_in_memory:
            columns = [load_vector(builder, each, kind) for each in columns]
        add_products = add_fours if kind == BYTES else _add_pairs
        keys = [builder.bitcast(each, WHOLE) for each in columns]
        for pointer, cells in zip(rows, self._cells, strict=True):
            value = builder.load(pointer, align=4)
            for cell, key in zip(cells, keys, strict=True):
                if not is_in_memory and cell is not cells[0]:
                    read_again(builder)  # or LLVM spreads it into a register first
                    value = builder.load(pointer, align=4)
                query = spread(builder, value, LANES)
                builder.store(add_products(builder, builder.load(cell), key, query), cell)

    def part(self, first: int, count: int) -> WholeTile:
        """See `tile.Tile`."""
        part = copy(self)
        part._cells = [each[first : first + count] for each in self._cells]
        return part

    def store(self, rows: Sequence[Any]) -> None:
        """Write the sums, as float32. rows: a pointer to the first of each."""
        for pointer, cells in zip(rows, self._cells, strict=True):
            for number, cell in enumerate(cells):
                sums = self._builder.sitofp(self._builder.load(cell), floats())
                target = self._builder.gep(pointer, [index(number * LANES)])
                store_vector(self._builder, sums, target)


def _add_pairs(builder: Any, total: Any, key: Any, query: Any) -> Any:
    """total + the products of two int16 in each lane of int32."""
    return instruction(builder, "llvm.x86.avx512.vpdpwssd.512", [total, key, query])
