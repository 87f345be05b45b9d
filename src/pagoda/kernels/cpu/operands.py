"""What a product takes and where it goes, as kernels hand it on: rows, a weight, a target."""

from __future__ import annotations

from typing import NamedTuple

from numba import njit

from pagoda.kernels.cpu.int8_rows import RECORD_BYTES


class Rows(NamedTuple):
    """Rows that are multiplied: x [count, depth groups] of the weight's dtype."""

    x: int
    """Its address."""
    num_rows: int
    depth: int
    records: int
    """Address of what rounding made of the rows (`int8_rows`); 0: they are not rounded."""
    record_stride: int
    """Bytes of records from span to span."""


@njit(error_model="numpy")
def rows_from(rows: Rows, start: int, count: int) -> Rows:
    """`count` of some rows, from row `start` on."""
    records = rows.records + start * RECORD_BYTES if rows.records != 0 else 0
    x = rows.x + start * rows.depth * 4
    return Rows(x, count, rows.depth, records, rows.record_stride)


class Weight(NamedTuple):
    """A weight in panels, [width, depth groups], or two whose columns belong together."""

    first: int
    """Address of the table of its panels, with one entry more at its end."""
    second: int
    """0, or the table of another of that shape, which `gate_routine` alone takes."""
    width: int
    bias: int
    """Address: [width] float32"""
    second_bias: int
    """As `bias`; without a second weight it is not read."""


class Target(NamedTuple):
    """What becomes of a product."""

    use: int
    """Address of `sum_routine` or of a gate's routine."""
    out: int
    """Address of what `use` writes for the first row."""
    row_bytes: int
    """From row to row."""
    item_size: int
    """From column to column, in bytes."""


class Ahead(NamedTuple):
    """Addresses of the two panels that are read next."""

    first: int
    other: int
