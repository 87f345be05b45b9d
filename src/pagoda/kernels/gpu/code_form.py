"""What kernels are compiled for where a cache is of codes, and what else they read of a codec.

A form is data in a kernel's constant arguments: where the bits of a vector lie, what they stand
for, and where the parts of a block begin. Within a head, keys as values lie token by token:
`[block_size, bytes of a vector's codes]`. A vector has its bytes as `VectorCode` says, but that
neighbouring chunks of one width have their lowest planes first, one after the other, and then the
next ones: so more bytes that lie together are of one plane, and are read at once.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import triton
from torch import Tensor

from pagoda.kernels.page_layout import coded_layout
from pagoda.kernels.vector_code import (
    FLOAT8_FORMS,
    SCALE_BYTES,
    Float8Form,
    Run,
    VectorCode,
)


class PlaneForm(NamedTuple):
    """Some bits of the numbers of a run, 2 · bits bytes a chunk."""

    start: int
    """Bytes of the run before it."""
    low: int
    """The lowest of its bits in a code."""
    bits: int
    in_turn: bool
    """They are a path and what is left, each number after number."""


class RunForm(NamedTuple):
    """Neighbouring chunks of one width."""

    first: int
    """Number of the first chunk."""
    num_chunks: int
    width: int
    start: int
    """Bytes of the vector before it."""
    planes: tuple[PlaneForm, ...]
    is_path: bool
    """Numbers are told by windows."""
    table_place: int
    """Where the levels of its codes, or windows, begin in a table."""
    table_bits: int
    """Of its codes, or windows."""


class VectorForm(NamedTuple):
    """Keys, or values, as a block has them."""

    numbers: str
    """As `VectorCode` has them."""
    has_table: bool
    """Levels are in a table; otherwise codes say them themselves."""
    float8: Float8Form | None
    """What a code is, of a float8."""
    runs: tuple[RunForm, ...]
    most_bits: int
    """Of the widest run."""
    most_path_bits: int
    """Of the widest that is a path; 0: there is none."""
    most_single_bits: int
    """Of the widest whose numbers are told one by one; 0: all are paths."""
    code_bytes: int
    scale_bytes: int
    """Bytes of one scale, or one offset: of float32, float16, ufloat8; 0: there are none."""
    has_offset: bool
    fit: str
    """How scales are chosen, as `codecs.codec.Fit` has it."""
    start: int
    """Bytes of a block before the first head's codes."""
    head_bytes: int
    """From one head's codes to the next one's."""
    scales: int
    """Bytes of a block before the first head's scales."""
    scale_head_bytes: int
    """From one head's scales to the next one's."""


class BlockForm(NamedTuple):
    """A block of one layer."""

    block_bytes: int
    keys: VectorForm
    values: VectorForm

    @property
    def has_paths(self) -> bool:
        """Some chunks are paths, whose numbers take more registers to read and to find."""
        return bool(self.keys.most_path_bits or self.values.most_path_bits)

    @property
    def is_mixed(self) -> bool:
        """Chunks differ in width: there are more loads, each of a part of its places."""
        return len(self.keys.runs) > 1 or len(self.values.runs) > 1


# Triton 3.6 hands a part of a constant on as a constant only where a function gives it.
@triton.constexpr_function
def keys_of(form):
    """Of a block's form."""
    return form.keys


@triton.constexpr_function
def values_of(form):
    """Of a block's form."""
    return form.values


@triton.constexpr_function
def float8_of(form):
    """Of a vector's form."""
    return form.float8


@triton.constexpr_function
def run_of(form, number):
    """Of a vector's form."""
    return form.runs[number]


@triton.constexpr_function
def plane_of(run, number):
    """Of a run's form."""
    return run.planes[number]


class VectorTables(NamedTuple):
    """What stands beside a code of keys, or of values, on a device."""

    code: VectorCode
    fit: str
    is_even: bool
    """Levels are 0, 1, 2 …, as codes are."""
    levels: Tensor | None
    """[num_kv_heads, TABLE_SIZE] int8, for codes of b bits from 2 ** b on; None: codes are no
    numbers of levels"""
    bounds: Tensor | None
    """[num_kv_heads, TABLE_SIZE] float32, between them; the first is what a root mean square of 1
    is brought to"""
    weights: Tensor | None
    """[num_kv_heads, head_size] float32: of squared errors, where the fit is weighted"""
    turn: Tensor | None
    """[num_kv_heads, head_size, head_size] float32, which vectors are multiplied with from the
    left before they are coded; heads may share one. None: they stay as they are."""

    @property
    def has_table(self) -> bool:
        """Levels have to be looked up."""
        return self.levels is not None and not self.is_even


class PageCodes(NamedTuple):
    """How one layer's keys and values are coded."""

    num_kv_heads: int
    block_size: int
    key: VectorTables
    value: VectorTables
    query_turn: Tensor | None
    """As `VectorTables.turn`: of queries, each by the matrix of its KV head."""
    output_turn: Tensor | None
    """Of what attention gives."""
    block_bytes: int | None = None
    """From block to block, where another layer's are larger; None: one follows the other."""

    @property
    def form(self) -> BlockForm:
        """What kernels are compiled for."""
        form = _block_form(
            self.num_kv_heads, self.block_size,
            self.key.code, self.key.fit, self.key.has_table,
            self.value.code, self.value.fit, self.value.has_table,
        )  # fmt: skip
        return form if self.block_bytes is None else form._replace(block_bytes=self.block_bytes)


class PageShape(NamedTuple):
    """What kernels need to know of blocks, plain or coded."""

    num_kv_heads: int
    block_size: int
    """Tokens."""
    block_numbers: int
    """From block to block, in what blocks are a tensor of."""


def page_shape(blocks: Tensor, codes: PageCodes | None) -> PageShape:
    """Of a layer's blocks.

    A block's own numbers lie together; beside layers with larger ones there is a gap behind them.
    """
    if codes is None:
        _, _, heads, size, dim = blocks.shape
        assert blocks.stride()[1:] == (heads * size * dim, size * dim, dim, 1)
        return PageShape(heads, size, blocks.stride(0))
    assert blocks.is_contiguous()
    assert blocks.shape[1] == codes.form.block_bytes
    return PageShape(codes.num_kv_heads, codes.block_size, codes.form.block_bytes)


def read_tables(codes: PageCodes | None) -> tuple[Tensor | None, Tensor | None]:
    """The levels of keys and of values, where they have to be looked up."""
    if codes is None:
        return None, None
    key, value = codes.key, codes.value
    return key.levels if key.has_table else None, value.levels if value.has_table else None


@cache
def _block_form(
    num_kv_heads: int, block_size: int, key: VectorCode, key_fit: str, key_has_table: bool,
    value: VectorCode, value_fit: str, value_has_table: bool,
) -> BlockForm:  # fmt: skip
    layout = coded_layout(num_kv_heads, block_size, key, value)
    key_places = (0, layout.key_head_bytes, layout.key_scales, layout.key_scale_bytes)
    value_places = (
        layout.values, layout.value_head_bytes, layout.value_scales, layout.value_scale_bytes,
    )  # fmt: skip
    return BlockForm(
        layout.block_bytes,
        _vector_form(key, key_fit, key_has_table, key_places),
        _vector_form(value, value_fit, value_has_table, value_places),
    )


def _vector_form(
    code: VectorCode, fit: str, has_table: bool, places: tuple[int, int, int, int]
) -> VectorForm:
    assert not code.has_offset or len(set(code.widths)) == 1
    return VectorForm(
        code.numbers,
        has_table,
        FLOAT8_FORMS.get(code.numbers),
        tuple(_run_form(code, run) for run in code.runs if run.width),
        max(code.widths),
        max((width for width in code.widths if code.is_path(width)), default=0),
        max((width for width in code.widths if not code.is_path(width)), default=0),
        code.code_bytes,
        SCALE_BYTES[code.scale] if code.scale else 0,
        code.has_offset,
        fit,
        *places,
    )


def _run_form(code: VectorCode, run: Run) -> RunForm:
    width = run.width
    planes = tuple(
        PlaneForm(run.num_chunks * plane.start, plane.low, plane.bits, plane.in_turn)
        for plane in code.planes(width)
    )
    return RunForm(
        *run, planes, code.is_path(width), code.table_place(width), code.table_bits(width)
    )
