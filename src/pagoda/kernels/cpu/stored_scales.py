"""Scales and addends of stored panels, on the stack until the codes beside them are used."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import cgutils

from pagoda.kernels.block_types import PANEL
from pagoda.kernels.cpu.number import constant, fused
from pagoda.kernels.cpu.stored_types import Head, StoredType
from pagoda.kernels.cpu.stored_words import BAND, SPAN
from pagoda.kernels.cpu.vector import F32, I32, floats, index, load_vector

_BYTE = ir.IntType(8)


class Scales:
    """Those of one block, of some bands of a panel."""

    def __init__(self, builder: Any, stored: StoredType, num_bands: int = 1, bias: int = 0) -> None:
        """bias: what codes are more than they stand for, which addends make up for."""
        self._builder, self._stored, self._bias = builder, stored, bias
        self._kind = floats(BAND)
        self._count = stored.block_values // stored.scale_values
        self.has_addend = False
        size = num_bands * self._count * 2 * BAND
        self._memory = cgutils.alloca_once(builder, F32, size=size)

    def prepare(self, head: Any, band: Any = None) -> None:
        """Work out all of a block; head: pointer to the first byte of the band's rows."""
        builder, bytes_of = self._builder, ir.VectorType(_BYTE, BAND)
        band = index(0) if band is None else band
        places = {place: number for number, place in enumerate(self._stored.head)}

        def byte(place: int) -> Any:
            source = builder.gep(head, [index(places[place] * PANEL)])
            found = builder.load(builder.bitcast(source, bytes_of.as_pointer()), align=1)
            return builder.zext(found, ir.VectorType(I32, BAND))

        block = Head(builder, byte, self._kind)
        for number in range(self._count):
            scale, addend = self._stored.scale(block, number)
            if self._bias:
                less = constant(self._kind, -self._bias)
                addend = (
                    builder.fmul(scale, less)
                    if addend is None
                    else fused(builder, scale, less, addend)
                )
            self._store(scale, self._place(band, index(number), 0))
            self.has_addend = addend is not None
            if addend is not None:
                self._store(addend, self._place(band, index(number), 1))

    def of(
        self, span: Any, number: int, band: Any = None, row: Any = None, rows: int = BAND
    ) -> tuple[Any, Any]:
        """Scale and addend of the span's numbers that share scale `number`; None: no addend.

        Of so many rows of the band from `row` on.
        """
        builder = self._builder
        band = index(0) if band is None else band
        per_span = SPAN // self._stored.scale_values
        which = builder.add(builder.mul(span, index(per_span)), index(number))

        def vector(kind: int) -> Any:
            place = self._place(band, which, kind)
            place = place if row is None else builder.gep(place, [row])
            return load_vector(builder, place, floats(rows))

        return vector(0), vector(1) if self.has_addend else None

    def _store(self, value: Any, place: Any) -> None:
        target = self._builder.bitcast(place, value.type.as_pointer())
        self._builder.store(value, target, align=4)

    def _place(self, band: Any, number: Any, which: int) -> Any:
        builder = self._builder
        each = builder.add(builder.mul(band, index(self._count)), number)
        twice = builder.add(builder.mul(each, index(2)), index(which))
        return builder.gep(self._memory, [builder.mul(twice, index(BAND))])
