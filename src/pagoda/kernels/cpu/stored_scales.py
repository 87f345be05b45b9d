"""Scales and addends of stored panels, on the stack until the codes beside them are used."""

from __future__ import annotations

from functools import cache
from typing import Any

from llvmlite import ir
from numba.core import cgutils

from pagoda.kernels.block_types import PANEL
from pagoda.kernels.cpu.number import constant, fused
from pagoda.kernels.cpu.stored_types import Head, StoredType
from pagoda.kernels.cpu.stored_words import SPAN
from pagoda.kernels.cpu.vector import BYTE, F32, LANES, LINE_BYTES, floats, index, load_vector


class Scales:
    """Those of one block, of `LANES` rows of a panel or of all."""

    def __init__(
        self, builder: Any, stored: StoredType, num_rows: int = LANES, bias: int = 0
    ) -> None:
        """bias: what codes are more than they stand for, which addends make up for."""
        self._builder, self._stored, self._bias = builder, stored, bias
        self.num_rows = num_rows
        self._count = stored.block_values // stored.scale_values
        self.has_addend = False
        self._memory = cgutils.alloca_once(builder, F32, size=self._count * 2 * num_rows)
        self._memory.align = LINE_BYTES  # what crosses lines is not read from stores under way

    def prepare(self, head: Any, row: Any = None) -> None:
        """Work out all of a block, of `LANES` rows; head: pointer to the first byte of these.

        row: which they are of those that are kept.
        """
        builder, bytes_of = self._builder, ir.VectorType(BYTE, LANES)
        row = index(0) if row is None else row
        places = {place: number for number, place in enumerate(self._stored.head)}

        @cache  # or LLVM reads it again, since scales are stored meanwhile
        def byte(place: int) -> Any:
            source = builder.gep(head, [index(places[place] * PANEL)])
            return load_vector(builder, source, bytes_of)

        block = Head(builder, byte)
        for number in range(self._count):
            scale, addend = self._stored.scale(block, number)
            if self._bias:
                less = constant(floats(), -self._bias)
                addend = (
                    builder.fmul(scale, less)
                    if addend is None
                    else fused(builder, scale, less, addend)
                )
            self._store(scale, self._place(index(number), 0, row))
            self.has_addend = addend is not None
            if addend is not None:
                self._store(addend, self._place(index(number), 1, row))

    def of(self, span: Any, number: int, row: Any = None, rows: int = LANES) -> tuple[Any, Any]:
        """Scale and addend of the span's numbers that share scale `number`; None: no addend.

        Of so many rows from `row` on.
        """
        builder = self._builder
        row = index(0) if row is None else row
        per_span = SPAN // self._stored.scale_values
        which = builder.add(builder.mul(span, index(per_span)), index(number))

        def vector(kind: int) -> Any:
            return load_vector(builder, self._place(which, kind, row), floats(rows))

        return vector(0), vector(1) if self.has_addend else None

    def _store(self, value: Any, place: Any) -> None:
        target = self._builder.bitcast(place, value.type.as_pointer())
        self._builder.store(value, target, align=4)

    def _place(self, number: Any, which: int, row: Any) -> Any:
        builder = self._builder
        twice = builder.add(builder.mul(number, index(2)), index(which))
        first = builder.mul(twice, index(self.num_rows))
        return builder.gep(self._memory, [builder.add(first, row)])
