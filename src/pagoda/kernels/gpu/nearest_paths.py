"""The nearest paths of rows' chunks, as `codecs.trellis` says: all at once, number by number.

States are two axes, the step before the last one and the last one, of two places each; a new step
adds an axis, and the best way takes away the oldest.
"""

from __future__ import annotations

import triton
import triton.language as tl

from pagoda.kernels.gpu.code_form import run_of
from pagoda.kernels.gpu.read_codes import CHUNK_NUMBERS, RING_START, in_run, level_starts
from pagoda.kernels.vector_code import SUBSET_STEPS

_PAST = tl.constexpr(1e30)
"""More than any path costs."""


# Triton 3.6 hands a part of a constant on as a constant only where a function gives it.
@triton.constexpr_function
def first_steps(subset):
    """Of a subset's first window."""
    return SUBSET_STEPS[subset]


@triton.jit
def path_codes(x, codes, levels, bounds, weight, form: tl.constexpr):
    """codes, [rows, padded_dim] int32, with those of chunks that are paths put in.

    x: likewise, float32, in the units of levels. weight: of squared errors.
    """
    chunks: tl.constexpr = x.shape[1] // CHUNK_NUMBERS
    bits = path_bits(tl.arange(0, x.shape[1]), form)
    places_0, costs_0 = of_subset(x, levels, bounds, weight, bits, 0, form)
    places_1, costs_1 = of_subset(x, levels, bounds, weight, bits, 1, form)
    places_2, costs_2 = of_subset(x, levels, bounds, weight, bits, 2, form)
    places_3, costs_3 = of_subset(x, levels, bounds, weight, bits, 3, form)
    places = places_0 | (places_1 << 8) | (places_2 << 16) | (places_3 << 24)
    path = cheapest_path(costs_0, costs_1, costs_2, costs_3, x.shape[0], chunks)
    number = tl.arange(0, CHUNK_NUMBERS)[None, None, :]
    ring = path | (path << CHUNK_NUMBERS)
    steps = tl.reshape((ring[:, :, None] >> (number + RING_START)) & 7, x.shape)
    own = steps >> 2
    subset = ((steps >> 1) & 1) + 2 * (own ^ (steps & 1))
    place = (places >> (8 * subset)) & 255
    return tl.where((bits > 0)[None, :], (place << 1) | own, codes)


@triton.jit
def path_bits(dims, form: tl.constexpr):
    """[dims] int32: bits of a code, of chunks that are paths; 0 of others."""
    bits = dims * 0
    for run in tl.static_range(len(form.runs)):
        bits += path_bits_of(dims, run_of(form, run))
    return bits


@triton.jit
def path_bits_of(dims, run: tl.constexpr):
    """The same for one run."""
    return tl.where(in_run(dims, run), run.width if run.is_path else 0, 0)


@triton.jit
def of_subset(x, levels, bounds, weight, bits, subset: tl.constexpr, form: tl.constexpr):
    """Which level of a subset is nearest, int32, and what it costs: [rows, padded_dim]."""
    count = tl.where(bits > 0, (1 << bits) >> 1, 0)
    own = level_starts(tl.arange(0, x.shape[1]), form) + first_steps(subset) * count
    starts = tl.where(bits > 0, own, 0)
    place = tl.zeros(x.shape, tl.int32)
    for step in tl.static_range(form.most_path_bits - 1):
        more = place + (1 << (form.most_path_bits - 2 - step))
        at = bounds + starts[None, :] + more - 1
        bound = tl.load(at, mask=more < count[None, :], other=float("inf"))
        place = tl.where(x > bound, more, place)
    error = x - tl.load(levels + starts[None, :] + place).to(tl.float32)
    return place, error * error * weight


@triton.jit
def cheapest_path(
    costs_0, costs_1, costs_2, costs_3, rows: tl.constexpr, chunks: tl.constexpr
):  # fmt: skip
    """[rows, chunks] int32, a bit a number: the path of least cost that ends where it began.

    Paths from each state are tried one after the other, so that a program's registers hold those of
    one.
    """
    two = tl.arange(0, 2)
    states = (two[None, :] + 2 * two[:, None])[None, None, :, :]
    began = tl.zeros((rows, chunks), tl.int32)
    least = tl.full((rows, chunks), float("inf"), tl.float32)
    history = tl.zeros((rows, chunks, 2, 2), tl.int32)
    for first in tl.range(4):
        sums, came = ways_from(first, costs_0, costs_1, costs_2, costs_3, rows, chunks)
        ends = tl.sum(tl.sum(tl.where(states == first, sums, 0.0), 3), 2)
        is_less = ends < least
        began = tl.where(is_less, first, began)
        least = tl.where(is_less, ends, least)
        history = tl.where(is_less[:, :, None, None], came, history)
    path, now = tl.zeros((rows, chunks), tl.int32), began
    for back in tl.range(CHUNK_NUMBERS):
        number = CHUNK_NUMBERS - 1 - back
        path |= (now & 1) << number
        is_now = states == now[:, :, None, None]
        came = tl.sum(tl.sum(tl.where(is_now, history, 0), 3), 2)
        now = (now >> 1) | (((came >> number) & 1) << 1)
    return path


@triton.jit
def ways_from(
    first, costs_0, costs_1, costs_2, costs_3, rows: tl.constexpr, chunks: tl.constexpr
):  # fmt: skip
    """Of the best path from state `first` to each state, [rows, chunks, 2, 2]: what it costs, and
    bits that say from which of two states it came to each number."""
    two = tl.arange(0, 2)
    before, last, own = two[:, None, None], two[None, :, None], two[None, None, :]
    subset = (last + 2 * (own ^ before))[None, None, :, :, :]
    is_second_way = (before == 1)[None, None, :, :, :]
    own_of_state = two[None, None, None, :]
    states = (two[None, :] + 2 * two[:, None])[None, None, :, :]
    sums = tl.where(states == first, 0.0, _PAST) + tl.zeros((rows, chunks, 2, 2), tl.float32)
    came = tl.zeros((rows, chunks, 2, 2), tl.int32)
    for number in tl.range(CHUNK_NUMBERS):
        cost_0 = cost_of(costs_0, number, rows, chunks)
        cost_1 = cost_of(costs_1, number, rows, chunks)
        cost_2 = cost_of(costs_2, number, rows, chunks)
        cost_3 = cost_of(costs_3, number, rows, chunks)
        cost = tl.where(subset == 0, cost_0, tl.where(subset == 1, cost_1, cost_2))
        ways = sums[:, :, :, :, None] + tl.where(subset == 3, cost_3, cost)
        way_1 = tl.sum(tl.where(is_second_way, 0.0, ways), 2)
        way_2 = tl.sum(tl.where(is_second_way, ways, 0.0), 2)
        is_second = tl.where(own_of_state == 1, way_2 <= way_1, way_2 < way_1)
        came |= is_second.to(tl.int32) << number
        sums = tl.where(is_second, way_2, way_1)
    return sums, came


@triton.jit
def cost_of(costs, number, rows: tl.constexpr, chunks: tl.constexpr):
    """Of each chunk's number, [rows, chunks, 1, 1, 1]."""
    by_chunk = tl.reshape(costs, (rows, chunks, CHUNK_NUMBERS))
    is_own = tl.arange(0, CHUNK_NUMBERS)[None, None, :] == number
    return tl.sum(tl.where(is_own, by_chunk, 0.0), 2)[:, :, None, None, None]
