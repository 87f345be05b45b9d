"""A trellis: a chunk's codes are chosen together, for the least sum of squared errors.

There are twice as many levels as codes, in four subsets: levels 0, 4, 8 … in the first, 1, 5, 9 …
in the next. A bit of each code is a step of a path, and says with the two steps before it which
subset the number's level is in (Ungerboeck, 1982; Marcellin and Fischer, 1990); the other bits say
which of that subset:

    subset of number i = path bit i - 1 + 2 · (path bit i ^ path bit i - 2)

The path is a ring: before the first number of a chunk are its last ones. So a chunk is told by its
own bits alone, every number alike, and all paths are found that end where they began. Of two ways
to a state that cost the same the one is taken whose steps i and i - 2 are alike.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from pagoda.codecs.nearest import nearest_places
from pagoda.kernels.array import Array
from pagoda.kernels.vector_code import CHUNK, MEMORY, SUBSET_STEPS

SUBSETS = len(SUBSET_STEPS)
_STATES = 4
"""The last two steps of a path: the last one in the lower bit."""
_AT_ONCE = 2048
"""Chunks whose paths are looked for together: what is known of them stays in a core's cache."""


def nearest_path(values: Array, weights: Array, levels: Array) -> Array:
    """The codes, uint8, of the path with the least sum of weight · error²; the lowest of a code's
    bits is the path's.

    values: [..., 16] float32. weights: likewise, or what is broadcast to it. levels: ascending.
    """
    flat = values.reshape(-1, CHUNK)
    counts = np.broadcast_to(weights, values.shape).reshape(-1, CHUNK)
    codes = np.empty(flat.shape, np.uint8)
    for first in range(0, len(flat), _AT_ONCE):
        part = slice(first, first + _AT_ONCE)
        codes[part] = _codes(flat[part].T, counts[part].T, levels).T
    return codes.reshape(values.shape)


def _codes(values: Array, weights: Array, levels: Array) -> Array:
    """Those of `nearest_path`; values, weights and codes: [16, chunks]."""
    places, costs = _of_subsets(np.ascontiguousarray(values), levels)
    costs *= weights[:, None]
    path = _cheapest(costs)
    number, chunk = np.ogrid[: path.shape[0], : path.shape[1]]
    return places[number, _subsets(path.T).T, chunk] << 1 | path


def level_places(codes: Array) -> Array:
    """Which of the levels codes, [..., 16], stand for."""
    return (codes.astype(np.int64) >> 1) * SUBSETS + _subsets(codes.astype(np.int64) & 1)


@cache
def window_places(bits: int) -> Array:
    """[2 ** (bits + 2)]: which of the levels each window stands for, as `vector_code` has them."""
    windows = np.arange(2 ** (bits + MEMORY))
    steps, rest = windows >> (bits - 1), windows & (2 ** (bits - 1) - 1)
    before, last, own = steps & 1, steps >> 1 & 1, steps >> 2
    return rest * SUBSETS + last + 2 * (own ^ before)


def _subsets(path: Array) -> Array:
    """Which subset each number's level is in; path: [..., 16] int64 of 0 and 1."""
    return np.roll(path, 1, -1) + 2 * (path ^ np.roll(path, 2, -1))


def _of_subsets(values: Array, levels: Array) -> tuple[Array, Array]:
    """[16, 4, chunks]: the nearest level's place in each subset, and the squared error."""
    places, costs = [], []
    for subset in range(SUBSETS):
        own = levels[subset::SUBSETS].astype(np.float32)
        place = nearest_places(values, (own[1:] + own[:-1]) / 2)
        places.append(place)
        costs.append(np.square(values - own[place]))
    return np.stack(places, 1), np.stack(costs, 1)


def _cheapest(costs: Array) -> Array:
    """[16, chunks] int64: the path of least cost that ends where it began (Viterbi, 1967), of all
    states to begin in; costs: [16, 4, chunks] float32."""
    count, own = costs.shape[-1], range(_STATES)
    so_far = np.full((_STATES, _STATES, count), np.inf, np.float32)  # by last and first state
    so_far[own, own] = 0
    came = np.empty((CHUNK, _STATES, _STATES, count), np.bool_)
    for number, cost in enumerate(costs[:, :, None]):
        step = np.empty_like(so_far)
        for bit in (0, 1):  # from both states whose earlier step was 0, and both whose was 1
            by_0 = so_far[:2] + cost[2 * bit :][:2]
            by_1 = so_far[2:] + cost[2 - 2 * bit :][:2]
            compare = np.less_equal if bit else np.less  # a like state is taken where both are
            compare(by_1, by_0, out=came[number, bit::2])
            np.minimum(by_0, by_1, out=step[bit::2])
        so_far = step
    first = so_far[own, own].argmin(0)
    path, state, chunks = np.empty((CHUNK, count), np.int64), first, np.arange(count)
    for number in reversed(range(CHUNK)):
        path[number] = state & 1
        state = (state >> 1) + 2 * came[number, state, first, chunks]
    return path
