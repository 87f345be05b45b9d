"""The way out of a coded cache: a tile of tokens' codes become levels, and scales stand beside.

A level is loaded from the byte that has its bits, or the bytes: neighbours in a vector lie in
neighbours of a plane, so loads are as wide as a plane, and what two of them have in common is found
in the nearest cache.
"""

from __future__ import annotations

import triton
import triton.language as tl

from pagoda.kernels.gpu.code_form import float8_of, plane_of, run_of
from pagoda.kernels.vector_code import (
    CHUNK,
    MEMORY,
    PATH_BYTES,
    TABLE_SIZE,
    UFLOAT8_BIAS,
    UFLOAT8_FRACTION,
)

CHUNK_NUMBERS, TABLE_NUMBERS = tl.constexpr(CHUNK), tl.constexpr(TABLE_SIZE)
RING_START = tl.constexpr(CHUNK - MEMORY)
"""From a ring's first step on, the place of what a window of its first number begins with."""
PATH_SIZE = tl.constexpr(PATH_BYTES)
_STEPS = tl.constexpr(2 ** (MEMORY + 1) - 1)
_UFLOAT8_SHIFT = tl.constexpr(23 - UFLOAT8_FRACTION)
_LOWEST_UFLOAT8 = tl.constexpr((127 - UFLOAT8_BIAS) << UFLOAT8_FRACTION)
"""What float32's exponent and first fraction bits have more."""
_HALF_UFLOAT8 = tl.constexpr(1 << (22 - UFLOAT8_FRACTION))


@triton.jit
def code_levels(
    vectors, readable, levels, head, form: tl.constexpr, padded_dim: tl.constexpr,
    dtype: tl.constexpr,
):  # fmt: skip
    """[tokens, padded_dim] dtype: what the codes at `vectors`, [tokens] pointers, stand for.

    readable: [tokens] bool, or None for all. levels: of all heads, or None. Columns of no
    run are finite.
    """
    dims = tl.arange(0, padded_dim)
    codes = tl.zeros((vectors.shape[0], padded_dim), tl.int32)
    for run in tl.static_range(len(form.runs)):
        codes = codes_of_run(codes, vectors, readable, dims, run_of(form, run))
    if form.has_table:
        places = level_starts(dims, form)[None, :] + codes
        found = table_levels(places, levels + head * TABLE_NUMBERS, form).to(dtype)
    else:
        found = own_numbers(codes, form).to(dtype)
    return found


@triton.jit
def table_levels(places, table, form: tl.constexpr):
    """Levels at places of a table, int32, picked from its words in registers.

    Loads of single levels would be behind those of the codes, which then could not run ahead.
    """
    words = table.to(tl.pointer_type(tl.int32), bitcast=True)
    word = places * 0
    for number in tl.static_range(first_word(form), end_word(form)):
        if has_word(form, number):
            word = tl.where((places >> 2) == number, tl.load(words + number), word)
    return (word << (24 - (places & 3) * 8)) >> 24


@triton.constexpr_function
def first_word(form):
    """Of four levels each: the first that a code of the form can ask for."""
    return min(run.table_place for run in form.runs) // 4


@triton.constexpr_function
def end_word(form):
    """The word after the last."""
    return -(-max(run.table_place + (1 << run.table_bits) for run in form.runs) // 4)


@triton.constexpr_function
def has_word(form, number):
    """Whether a code of the form can ask for it."""
    return any(
        run.table_place < 4 * (number + 1) and 4 * number < run.table_place + (1 << run.table_bits)
        for run in form.runs
    )


@triton.jit
def in_run(dims, run: tl.constexpr):
    """[dims] bool: those of the run's chunks."""
    chunk = dims // CHUNK_NUMBERS
    return (chunk >= run.first) & (chunk < run.first + run.num_chunks)


@triton.jit
def level_starts(dims, form: tl.constexpr):
    """[dims] int32: where the levels of codes, or of windows, begin in a table."""
    starts = dims * 0
    for run in tl.static_range(len(form.runs)):
        starts += level_start(dims, run_of(form, run))
    return starts


@triton.jit
def level_start(dims, run: tl.constexpr):
    """The same for one run; 0 for others."""
    return tl.where(in_run(dims, run), run.table_place, 0)


@triton.jit
def table_starts(dims, form: tl.constexpr):
    """[dims] int32: where the levels of codes begin in a table, 2 ** width; 0 where none are."""
    starts = dims * 0
    for run in tl.static_range(len(form.runs)):
        starts += table_start(dims, run_of(form, run))
    return starts


@triton.jit
def table_start(dims, run: tl.constexpr):
    """The same for one run; 0 for others."""
    return tl.where(in_run(dims, run), 1 << run.width, 0)


@triton.jit
def codes_of_run(codes, vectors, readable, dims, run: tl.constexpr):
    """codes, [tokens, dims] int32, with those of the run put in, or its windows."""
    wanted = None
    if run.first > 0 or run.num_chunks * CHUNK_NUMBERS != dims.shape[0]:
        wanted = in_run(dims, run)[None, :]
    if readable is not None:
        wanted = readable[:, None] if wanted is None else readable[:, None] & wanted
    if run.is_path:
        codes = codes | windows_of_run(vectors, wanted, dims, run)
    else:
        for plane in tl.static_range(len(run.planes)):
            codes = codes_of_plane(codes, vectors, wanted, dims, run, plane_of(run, plane))
    return codes


@triton.jit
def windows_of_run(vectors, wanted, dims, run: tl.constexpr):
    """[tokens, dims] int32: windows, of a run that is paths."""
    chunk, number = dims // CHUNK_NUMBERS - run.first, dims % CHUNK_NUMBERS
    start = run.start + chunk * (PATH_SIZE * run.width)
    path = two_bytes(vectors, wanted, start, start + 1)
    windows = ((path | (path << CHUNK_NUMBERS)) >> (number + RING_START)[None, :]) & _STEPS
    if run.width > 1:
        rest: tl.constexpr = run.width - 1
        byte = number * rest // 8
        after = tl.minimum(byte + 1, PATH_SIZE * rest - 1)
        start += PATH_SIZE
        word = two_bytes(vectors, wanted, start + byte, start + after)
        low = (word >> (number * rest % 8)[None, :]) & ((1 << rest) - 1)
        windows = (windows << rest) | low
    if wanted is not None:
        windows = tl.where(wanted, windows, 0)
    return windows


@triton.jit
def two_bytes(vectors, wanted, low, high):
    """[tokens, dims] int32: the byte at `low` of each vector, and above it that at `high`."""
    lower = load_wanted(vectors[:, None] + low[None, :], wanted).to(tl.int32)
    return lower | (load_wanted(vectors[:, None] + high[None, :], wanted).to(tl.int32) << 8)


@triton.jit
def codes_of_plane(codes, vectors, wanted, dims, run: tl.constexpr, plane: tl.constexpr):
    """codes with the bits of one of the run's planes put in."""
    chunk = dims // CHUNK_NUMBERS - run.first
    # A single remainder: Triton sees neighbours in that, and loads them together.
    number = run.start + plane.start + chunk * (2 * plane.bits) + dims % (2 * plane.bits)
    places = vectors[:, None] + number[None, :]
    if wanted is None:
        part = tl.load(places).to(tl.int32)
    else:
        part = tl.load(places, mask=wanted, other=0).to(tl.int32)
    if plane.bits < 8:
        shifts = dims % CHUNK_NUMBERS // (2 * plane.bits) * plane.bits
        part = (part >> shifts[None, :]) & ((1 << plane.bits) - 1)
    return codes | (part << plane.low)


@triton.jit
def own_numbers(codes, form: tl.constexpr):
    """What codes say themselves: whole numbers, or float32."""
    if form.numbers == "int8":
        found = (codes ^ 128) - 128
    elif form.numbers == "levels":
        found = codes
    else:
        found = float8_numbers(codes, float8_of(form))
    return found


@triton.jit
def float8_numbers(codes, float8: tl.constexpr):
    """float32: the bits at their place in a float32, and what exponents differ by, multiplied."""
    bits = ((codes & 128) << 24) | ((codes & 127) << (23 - float8.fraction_bits))
    return bits.to(tl.float32, bitcast=True) * (2.0 ** (127 - float8.bias))


@triton.jit
def vector_scales(block, in_block, head, readable, form: tl.constexpr, beyond: tl.constexpr):
    """[tokens] float32: scales of tokens at `in_block` of the blocks at `block`; None without.

    beyond: 0, or the tokens of a block, behind whose scales their offsets are.
    """
    found = None
    if form.scale_bytes:
        at = block + (form.scales + head * form.scale_head_bytes)
        at += (in_block + beyond) * form.scale_bytes
        if form.scale_bytes == 1:
            found = ufloat8_numbers(load_wanted(at, readable).to(tl.int32))
        elif form.scale_bytes == 2:
            halves = at.to(tl.pointer_type(tl.float16), bitcast=True)
            found = load_wanted(halves, readable).to(tl.float32)
        else:
            found = load_wanted(at.to(tl.pointer_type(tl.float32), bitcast=True), readable)
    return found


@triton.jit
def load_wanted(places, wanted):
    """What lies at places; 0 where it is not wanted. wanted: None for all."""
    if wanted is None:
        return tl.load(places)
    else:
        return tl.load(places, mask=wanted, other=0)


@triton.jit
def ufloat8_numbers(codes):
    """What codes of a ufloat8, int32, stand for."""
    numbers = ((codes + _LOWEST_UFLOAT8) << _UFLOAT8_SHIFT).to(tl.float32, bitcast=True)
    return tl.where(codes == 0, 0.0, numbers)


@triton.jit
def nearest_ufloat8(values):
    """Codes, int32, nearest to numbers that are not below 0; at most the largest."""
    bits = values.to(tl.int32, bitcast=True)
    codes = ((bits + _HALF_UFLOAT8) >> _UFLOAT8_SHIFT) - _LOWEST_UFLOAT8
    return tl.minimum(tl.maximum(codes, 0), 255)
