"""The way into a coded cache: vectors become codes, scales and offsets, as `codecs.codec` says.

Rows are vectors, `[rows, padded_dim]` float32 whose columns from head_dim on are 0, and all that is
stored of a row depends on that row alone. Divisions and square roots are rounded to nearest.
"""

from __future__ import annotations

import triton
import triton.language as tl

from pagoda.kernels.gpu.code_form import float8_of, plane_of, run_of
from pagoda.kernels.gpu.nearest_paths import path_bits, path_codes
from pagoda.kernels.gpu.read_codes import (
    CHUNK_NUMBERS,
    PATH_SIZE,
    TABLE_NUMBERS,
    nearest_ufloat8,
    table_starts,
    ufloat8_numbers,
)
from pagoda.kernels.vector_code import SCALE_REACH

_REACH, _TRIES = tl.constexpr(SCALE_REACH), tl.constexpr(2 * SCALE_REACH + 1)
_LEAST = tl.constexpr(1e-30)
"""What is smaller is not divided by: its inverse is 0."""
_WHOLE = tl.constexpr(1.5 * 2**23)
"""Added to a float32 of up to 2 ** 22 and taken away again, it leaves the nearest whole number."""


@triton.jit
def store_vectors(
    x, wanted, block, in_block, head, levels, bounds, weights,
    block_size: tl.constexpr, head_dim: tl.constexpr, form: tl.constexpr,
):  # fmt: skip
    """Store rows x as token `in_block` of the blocks at `block`, both [rows], of one KV head.

    wanted: [rows] bool. levels, bounds, weights: of all heads, or None where there are none.
    """
    vectors = block + (form.start + head * form.head_bytes) + in_block * form.code_bytes
    scales_at = block + (form.scales + head * form.scale_head_bytes)
    at = scales_at + in_block * form.scale_bytes
    if form.numbers != "levels":
        if form.scale_bytes:
            codes = scaled_codes(x, at, wanted, form)
        else:
            codes = nearest_float8(x, float8_of(form))
    elif form.has_offset:
        beyond = at + block_size * form.scale_bytes
        codes = even_codes(x, at, beyond, wanted, bounds + head * TABLE_NUMBERS, head_dim, form)
    elif form.fit == "weighted":
        codes = weighted_codes(
            x, at, wanted, levels + head * TABLE_NUMBERS, bounds + head * TABLE_NUMBERS,
            weights + head * head_dim, head_dim, form,
        )  # fmt: skip
    else:
        codes = fitted_codes(
            x, at, wanted, levels + head * TABLE_NUMBERS, bounds + head * TABLE_NUMBERS,
            head_dim, form,
        )  # fmt: skip
    for run in tl.static_range(len(form.runs)):
        store_run(codes, vectors, wanted, run_of(form, run))


@triton.jit
def scaled_codes(x, at, wanted, form: tl.constexpr):
    """Codes of eight bits, int32: the largest magnitude of a row becomes the largest number.

    Scales are stored at `at`, [rows] pointers.
    """
    if form.numbers == "int8":
        factor = largest_scale(x, 127.0, at, wanted, form)
        codes = nearest_whole(x * factor[:, None]) & 255
    else:
        factor = largest_scale(x, form.float8.largest, at, wanted, form)
        codes = nearest_float8(x * factor[:, None], float8_of(form))
    return codes


@triton.jit
def inverse(values):
    """1 / value, and 0 for what is too small to be divided by."""
    tiny = values < _LEAST
    return tl.where(tiny, 0.0, tl.div_rn(1.0, tl.where(tiny, 1.0, values)))


@triton.jit
def rint(values):
    """The nearest whole number, ties to even, float32; of products only where they are exact."""
    return (values + _WHOLE) - _WHOLE


@triton.jit
def store_scale(at, values, wanted, form: tl.constexpr):
    """Store one scale, or offset, a row; returns what was stored, float32."""
    stored = values
    if form.scale_bytes == 2:
        halves = values.to(tl.float16)
        tl.store(at.to(tl.pointer_type(tl.float16), bitcast=True), halves, mask=wanted)
        stored = halves.to(tl.float32)
    else:
        tl.store(at.to(tl.pointer_type(tl.float32), bitcast=True), values, mask=wanted)
    return stored


@triton.jit
def largest_scale(x, limit: tl.constexpr, at, wanted, form: tl.constexpr):
    """Store what brings the largest magnitude of a row to `limit`; returns what rows are multiplied
    with, [rows]."""
    most = tl.max(tl.abs(x), 1)
    # All tensors: a quotient with a plain number is not of one dtype.
    scales = tl.div_rn(most, tl.full((x.shape[0],), limit, tl.float32))
    return inverse(store_scale(at, scales, wanted, form))


@triton.jit
def nearest_whole(values):
    """int32, of -127 to 127.

    Values are bounded first: a product that `rint` took as it is would be fused with its sum, and
    not rounded by itself, as on a CPU.
    """
    return rint(tl.minimum(tl.maximum(values, -127.0), 127.0)).to(tl.int32)


@triton.jit
def nearest_float8(values, float8: tl.constexpr):
    """Codes of float8, int32; ties go to the even one, what is beyond the largest to that."""
    magnitude = tl.abs(values)
    magnitude = tl.where(magnitude < float8.largest, magnitude, float8.largest)  # NaN as well
    bits = magnitude.to(tl.int32, bitcast=True)
    shift = 23 - float8.fraction_bits
    rounded = (bits + ((1 << (shift - 1)) - 1) + ((bits >> shift) & 1)) >> shift
    normal = rounded - ((127 - float8.bias) << float8.fraction_bits)
    # Spaced evenly, like the smallest normal ones.
    small = rint(tl.minimum(magnitude, 1.0) * 2.0 ** (float8.bias + float8.fraction_bits - 1))
    codes = tl.where((bits >> 23) <= 127 - float8.bias, small.to(tl.int32), normal)
    return codes | tl.where(values < 0.0, 128, 0)


@triton.jit
def even_codes(x, scale_at, offset_at, wanted, bounds, head_dim: tl.constexpr, form: tl.constexpr):
    """Codes of even steps from a row's smallest number to its largest, int32."""
    inside = (tl.arange(0, x.shape[1]) < head_dim)[None, :]
    low = tl.min(tl.where(inside, x, float("inf")), 1)
    high = tl.max(tl.where(inside, x, float("-inf")), 1)
    start = store_scale(offset_at, low, wanted, form)
    steps = tl.full((x.shape[0],), 2.0**form.most_bits - 1, tl.float32)
    factor = inverse(store_scale(scale_at, tl.div_rn(high - start, steps), wanted, form))
    starts = table_starts(tl.arange(0, x.shape[1]), form)
    return nearest_levels((x - start[:, None]) * factor[:, None], bounds, starts, form.most_bits)


@triton.jit
def fitted_codes(
    x, at, wanted, levels, bounds, head_dim: tl.constexpr, form: tl.constexpr
):  # fmt: skip
    """Codes of the nearest levels, int32, once a row's root mean square is the table's."""
    squares = tl.sum(x * x, 1)
    factor = tl.load(bounds) * inverse(root_mean(squares, head_dim))
    starts = table_starts(tl.arange(0, x.shape[1]), form)
    codes = nearest_levels(x * factor[:, None], bounds, starts, form.most_bits)
    found = levels_of(codes, levels, head_dim, form)
    if form.fit == "unbiased":
        scales = squares * inverse(tl.sum(x * found, 1))
    elif form.fit == "norm":
        scales = tl.sqrt_rn(squares * inverse(tl.sum(found * found, 1)))
    else:
        scales = tl.sum(x * found, 1) * inverse(tl.sum(found * found, 1))
    store_scale(at, scales, wanted, form)
    return codes


@triton.jit
def weighted_codes(
    x, at, wanted, levels, bounds, weights, head_dim: tl.constexpr, form: tl.constexpr
):  # fmt: skip
    """Codes of the nearest levels, int32, under that scale of those beside the root mean square's
    whose errors count least; where chunks are paths, of the nearest of these under it."""
    dims = tl.arange(0, x.shape[1])
    weight = tl.load(weights + dims, mask=dims < head_dim, other=0.0)[None, :]
    means = root_mean(tl.sum(x * x, 1), head_dim)
    middle = nearest_ufloat8(means * inverse(tl.load(bounds)))
    starts = table_starts(dims, form)
    best = middle
    least = tl.full(middle.shape, float("inf"), tl.float32)
    for step in tl.range(_TRIES):
        tried = tl.minimum(tl.maximum(middle + step - _REACH, 0), 255)
        scale = ufloat8_numbers(tried)
        codes = nearest_levels(x * inverse(scale)[:, None], bounds, starts, form.most_bits)
        error = x - scale[:, None] * levels_of(codes, levels, head_dim, form)
        cost = tl.sum(weight * error * error, 1)
        best = tl.where(cost < least, tried, best)
        least = tl.minimum(cost, least)
    tl.store(at, best.to(tl.uint8), mask=wanted)
    scaled = x * inverse(ufloat8_numbers(best))[:, None]
    singles = tl.where(path_bits(dims, form) > 0, 0, starts)
    codes = nearest_levels(scaled, bounds, singles, form.most_single_bits)
    if form.most_path_bits:
        codes = path_codes(scaled, codes, levels, bounds, weight, form)
    return codes


@triton.jit
def root_mean(squares, head_dim: tl.constexpr):
    """The root of the mean of so many squares, [rows]."""
    count = tl.full(squares.shape, head_dim, tl.float32)
    return tl.sqrt_rn(tl.div_rn(squares, count))


@triton.jit
def levels_of(codes, levels, head_dim: tl.constexpr, form: tl.constexpr):
    """What codes stand for, float32; 0 in columns from head_dim on."""
    dims = tl.arange(0, codes.shape[1])
    found = tl.load(levels + table_starts(dims, form)[None, :] + codes).to(tl.float32)
    return tl.where((dims < head_dim)[None, :], found, 0.0)


@triton.jit
def nearest_levels(values, bounds, starts, most_bits: tl.constexpr):
    """How many of its width's bounds lie below each value, int32: found bit by bit.

    starts: [dims] int32, 2 ** width, where a width's bounds begin; 0 where nothing is looked for.
    """
    codes = tl.zeros(values.shape, tl.int32)
    for step in range(most_bits):
        more = codes + (1 << (most_bits - 1 - step))
        places = starts[None, :] + more - 1
        bound = tl.load(bounds + places, mask=more < starts[None, :], other=float("inf"))
        codes = tl.where(values > bound, more, codes)
    return codes


@triton.jit
def store_run(codes, vectors, wanted, run: tl.constexpr):
    """Pack and store the codes of a run."""
    for plane in tl.static_range(len(run.planes)):
        if plane_of(run, plane).in_turn:
            store_in_turn(codes, vectors, wanted, run, plane_of(run, plane))
        else:
            store_plane(codes, vectors, wanted, run, plane_of(run, plane))


@triton.jit
def store_in_turn(codes, vectors, wanted, run: tl.constexpr, plane: tl.constexpr):
    """A plane that is a path and what is left of the codes, number after number."""
    chunks: tl.constexpr = codes.shape[1] // CHUNK_NUMBERS
    size: tl.constexpr = 2 * plane.bits
    own = codes & ((1 << plane.bits) - 1)
    own = tl.reshape(own, (codes.shape[0], chunks, CHUNK_NUMBERS)).to(tl.int64)
    number = tl.arange(0, CHUNK_NUMBERS)[None, None, :]
    path = tl.sum((own & 1) << number, 2)[:, :, None]
    rest = tl.sum((own >> 1) << (number * (plane.bits - 1)), 2)[:, :, None]
    byte, chunk = tl.arange(0, 16), tl.arange(0, chunks)
    of_path = (path >> (tl.minimum(byte, PATH_SIZE - 1) * 8)[None, None, :]) & 255
    after = tl.minimum(tl.maximum(byte - PATH_SIZE, 0), 7)
    cut = tl.where(
        (byte < PATH_SIZE)[None, None, :], of_path, (rest >> (after * 8)[None, None, :]) & 255
    )
    inside = ((chunk >= run.first) & (chunk < run.first + run.num_chunks))[:, None]
    inside = inside & (byte < size)[None, :]
    places = (run.start + plane.start + (chunk - run.first) * size)[:, None] + byte[None, :]
    tl.store(
        vectors[:, None, None] + places[None, :, :],
        cut.to(tl.uint8),
        mask=wanted[:, None, None] & inside[None, :, :],
    )


@triton.jit
def store_plane(codes, vectors, wanted, run: tl.constexpr, plane: tl.constexpr):
    """Byte i of a plane of b bits has those of the numbers i, i + 2 b … of its chunk."""
    parts: tl.constexpr = 8 // plane.bits
    width: tl.constexpr = 2 * plane.bits
    chunks: tl.constexpr = codes.shape[1] // CHUNK_NUMBERS
    own = (codes >> plane.low) & ((1 << plane.bits) - 1)
    own = tl.reshape(own, (codes.shape[0], chunks, parts, width))
    shifts = tl.arange(0, parts) * plane.bits
    together = tl.sum(own << shifts[None, None, :, None], 2)
    chunk = tl.arange(0, chunks)
    inside = (chunk >= run.first) & (chunk < run.first + run.num_chunks)
    places = run.start + plane.start + (chunk - run.first) * width
    places = places[:, None] + tl.arange(0, width)[None, :]
    tl.store(
        vectors[:, None, None] + places[None, :, :],
        together.to(tl.uint8),
        mask=wanted[:, None, None] & inside[None, :, None],
    )
