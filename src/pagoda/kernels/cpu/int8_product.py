"""The product of rows rounded to eight bits with panels of quantised types with whole codes.

    out[row, column] = Σ over spans of scale_x · scale · (Σ code_x · code) + addend · sum_x

Codes are multiplied as they are, four at a time, and whole sums become float32 once for each scale:
a tenth of the instructions that decoding takes. The order of sums is that of spans and depends on
nothing else, so rows do not depend on their batch. Compare llama.cpp's products, which round
activations too: github.com/ggml-org/ggml, `ggml_vec_dot_q4_K_q8_K`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from llvmlite import ir
from numba.core import cgutils

from pagoda.kernels.block_types import PANEL
from pagoda.kernels.cpu.byte_codes import ByteCodes
from pagoda.kernels.cpu.byte_products import BYTE, summed
from pagoda.kernels.cpu.int8_rows import RECORD_BYTES, SCALE, SUMS
from pagoda.kernels.cpu.number import constant, emitted, fused
from pagoda.kernels.cpu.routine import compiled, routine_body
from pagoda.kernels.cpu.stored_scales import Scales
from pagoda.kernels.cpu.stored_types import STORED_TYPES, StoredType
from pagoda.kernels.cpu.stored_words import (
    BAND,
    BYTES,
    SPAN,
    TOGETHER,
    Blocks,
    Words,
    ask_codes,
    ask_head,
    codes_of_span,
)
from pagoda.kernels.cpu.sums import SUMS_BYTES
from pagoda.kernels.cpu.vector import (
    F32,
    LANES,
    UNIT,
    floats,
    index,
    lane_numbers,
    load_vector,
    pointer,
    spread,
    store_vector,
)

_COLUMNS = LANES // 2 * TOGETHER
"""Columns that are multiplied at once. A vector of as many lanes holds the codes of a group: of all
columns, or of half of them where a lane has every second number."""
_GROUP = BYTES * TOGETHER
"""Numbers of a column whose codes lie in its lanes of one vector."""
_GROUPS = SPAN // _GROUP
_ROW_ALONE = UNIT.byte_products == 2
"""A row alone has code of its own: where registers are small, a quarter of a panel's columns are
multiplied at once, and loading the row's codes for each of them takes as long as multiplying."""
_AHEAD_BYTES = 2048
"""How far memory is asked for a row alone."""


@cache
def int8_routine(name: str) -> Any:
    """For panels of one of `BYTE_TYPES`. Compiles it or takes it from disk."""

    def multiply_rounded(
        out: int, x: int, stride: int, rows: int, panel: int, spans: int, following: int
    ) -> None:
        """out[:rows, :PANEL] = rows · a panel of so many spans; by addresses.

        out: float32, `SUMS_BYTES` from row to row; x: records of the first row (`int8_rows`),
        `stride` bytes from span to span; following: the panel that is read next.
        """
        _multiply_rounded((out, x, stride, rows, panel, spans, following), name)

    return compiled(multiply_rounded, 7)


@emitted
def _multiply_rounded(typing: Any, args: Any, name: Any) -> Any:
    stored = STORED_TYPES[name.literal_value]

    def emit(builder: Any, values: Sequence[Any]) -> None:
        _Product(builder, stored, *values).emit()

    return routine_body(args, (name,), emit)


class _Product:
    """Emits the product with one panel."""

    def __init__(
        self, builder: Any, stored: StoredType, out: Any, x: Any, stride: Any, rows: Any,
        panel: Any, spans: Any, following: Any,
    ) -> None:  # fmt: skip
        self._builder, self._stored = builder, stored
        self._out = pointer(builder, out)
        self._x = builder.inttoptr(x, BYTE.as_pointer())
        self._blocks = Blocks(builder, stored, panel, spans, following)
        self._stride, self._rows = stride, rows
        self._bytes = ByteCodes.of(stored)
        self._scales = Scales(builder, stored, PANEL, self._bytes.bias)

    def emit(self) -> None:
        if not _ROW_ALONE:
            self._emit_rows()
            return
        builder = self._builder
        is_alone = builder.icmp_signed("==", self._rows, index(1))
        with builder.if_else(is_alone) as (alone, others):
            with alone:
                self._emit_row()
            with others:
                self._emit_rows()

    def _emit_rows(self) -> None:
        self._clear()
        builder = self._builder

        def emit_span(block: Any, asked: Any, span: Any, records: Any) -> None:
            with cgutils.for_range(builder, index(PANEL // _COLUMNS)) as parts:
                column = builder.mul(parts.index, index(_COLUMNS))
                self._multiply_part(block, asked, span, column, records)

        self._for_each_span(emit_span)

    def _emit_row(self) -> None:
        """The product of a row alone: its numbers are read once for all columns of a panel."""
        builder, kind = self._builder, floats(_COLUMNS)
        columns = range(0, PANEL, _COLUMNS)
        cells = [cgutils.alloca_once_value(builder, constant(kind, 0.0)) for _ in columns]

        def emit_span(block: Any, asked: Any, span: Any, record: Any) -> None:
            later = builder.gep(block, [index(_AHEAD_BYTES)])
            for first in range(0, PANEL, LANES):
                ask_codes(builder, self._stored, later, index(first), span)
            for first, cell in zip(columns, cells, strict=True):
                column = index(first)
                codes, scales = self._codes(block, span, column), self._scales_of(span, column)
                self._add(codes, scales, record, cell)

        self._for_each_span(emit_span)
        for first, cell in zip(columns, cells, strict=True):
            store_vector(builder, builder.load(cell), self._sums(index(0), index(first)))

    def _for_each_span(self, emit: Callable[[Any, Any, Any, Any], None]) -> None:
        """emit: gets a block, the one that is asked for, a span's number, and its records."""
        builder, stored = self._builder, self._stored
        spans = index(stored.block_values // SPAN)
        with cgutils.for_range(builder, self._blocks.count) as blocks:
            block, asked = self._blocks.at(blocks.index)
            ask_head(builder, stored, asked)
            with cgutils.for_range(builder, index(PANEL // LANES)) as parts:
                row = builder.mul(parts.index, index(LANES))
                self._scales.prepare(builder.gep(block, [row]), row)
            start = builder.mul(blocks.index, spans)
            with cgutils.for_range(builder, spans) as each:
                place = builder.mul(builder.add(start, each.index), self._stride)
                emit(block, asked, each.index, builder.gep(self._x, [place]))

    def _clear(self) -> None:
        builder = self._builder
        with cgutils.for_range(builder, self._rows) as rows:
            for column in range(0, PANEL, _COLUMNS):
                zeros = constant(floats(_COLUMNS), 0.0)
                store_vector(builder, zeros, self._sums(rows.index, index(column)))

    def _sums(self, row: Any, column: Any) -> Any:
        builder = self._builder
        place = builder.add(builder.mul(row, index(SUMS_BYTES // 4)), column)
        return builder.gep(self._out, [place])

    def _multiply_part(self, block: Any, asked: Any, span: Any, column: Any, records: Any) -> None:
        """Add a span's products with `_COLUMNS` columns."""
        builder, stored = self._builder, self._stored
        ask_codes(builder, stored, asked, column, span)
        codes, scales = self._codes(block, span, column), self._scales_of(span, column)
        with cgutils.for_range(builder, self._rows) as rows:
            record = builder.gep(records, [builder.mul(rows.index, index(RECORD_BYTES))])
            self._add(codes, scales, record, self._sums(rows.index, column))

    def _codes(self, block: Any, span: Any, column: Any) -> list[list[Any]]:
        """Bytes of a span of `_COLUMNS` columns, by bands and groups."""
        builder, codes = self._builder, []
        for band in range(TOGETHER):
            row = builder.add(column, index(band * BAND))
            lane = builder.mul(builder.urem(row, index(BAND)), index(TOGETHER))
            start = codes_of_span(builder, self._stored, block, row, span)
            words = Words(builder, self._stored, start, lane, _COLUMNS)
            codes.append([self._bytes.load(builder, words, group) for group in range(_GROUPS)])
        return codes

    def _scales_of(self, span: Any, column: Any) -> list[tuple[Any, Any]]:
        count = SPAN // self._stored.scale_values
        return [self._scales.of(span, number, column, _COLUMNS) for number in range(count)]

    def _add(
        self, codes: list[list[Any]], scales: list[tuple[Any, Any]], record: Any, target: Any
    ) -> None:
        """Add the products of one row's record to the sums that a pointer leads to."""
        builder = self._builder
        per_scale = self._stored.scale_values // _GROUP
        total = None
        for number, (scale, _) in enumerate(scales):
            chosen = range(number * per_scale, (number + 1) * per_scale)
            wholes = [self._whole(band, record, chosen) for band in codes]
            value = builder.sitofp(self._by_column(wholes), floats(_COLUMNS))
            total = (
                builder.fmul(scale, value) if total is None else fused(builder, scale, value, total)
            )
        sums = load_vector(builder, target, floats(_COLUMNS))
        sums = fused(builder, self._number(record, SCALE), total, sums)
        for number, (_, addend) in enumerate(scales):
            if addend is not None:
                place = 2 if len(scales) == 1 else number
                factor = self._number(record, SUMS + 4 * place)
                sums = fused(builder, addend, factor, sums)
        store_vector(builder, sums, target)

    def _whole(self, codes: list[Any], record: Any, groups: range) -> Any:
        """In each lane the sum of the products of a band's codes of some groups."""
        chosen = [codes[group] for group in groups]
        others = [self._loader(record, group, codes[0].type) for group in groups]
        signed, most = self._bytes.signed, self._bytes.most
        return summed(self._builder, chosen, others, most, signed=signed)

    def _loader(self, record: Any, group: int, kind: Any) -> Callable[[], Any]:
        """Loads a record's codes of a group, the same for every column."""
        builder = self._builder

        def load() -> Any:
            word = ir.IntType(32 * TOGETHER)
            source = builder.gep(record, [index(group * _GROUP)])
            value = builder.load(builder.bitcast(source, word.as_pointer()), align=4)
            return builder.bitcast(spread(builder, value, kind.count // TOGETHER), kind)

        return load

    def _by_column(self, wholes: list[Any]) -> Any:
        """One sum for each column, of the sums in the lanes of the bands."""
        if TOGETHER == 1:
            return wholes[0]
        builder = self._builder
        even, odd = (
            builder.shuffle_vector(*wholes, lane_numbers(range(first, 2 * LANES, 2)))
            for first in (0, 1)
        )
        return builder.add(even, odd)

    def _number(self, record: Any, place: int) -> Any:
        """A record's float32, in every lane."""
        builder = self._builder
        source = builder.bitcast(builder.gep(record, [index(place)]), F32.as_pointer())
        return spread(builder, builder.load(source, align=4), _COLUMNS)
