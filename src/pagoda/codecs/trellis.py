"""A trellis: a chunk's codes are chosen together, for the least sum of squared errors.

There are twice as many levels as codes, in four subsets: levels 0, 4, 8 … in the first, 1, 5, 9 …
in the next. A bit of each code is a step of a path, and says with the two steps before it which
subset the number's level is in (Ungerboeck, 1982; Marcellin and Fischer, 1990); the other bits say
which of that subset:

    subset of number i = path bit i - 1 + 2 · (path bit i ^ path bit i - 2)

The path is a ring: before the first number of a chunk are its last ones. So a chunk is told by its
own bits alone, every number alike, and all paths are found that end where they began.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from pagoda.kernels.array import Array
from pagoda.kernels.vector_code import CHUNK, MEMORY, SUBSET_STEPS

SUBSETS = len(SUBSET_STEPS)
_STATES = 4
"""The last two steps of a path: the last one in the lower bit."""


def nearest_path(values: Array, weights: Array, levels: Array) -> Array:
    """The codes, uint8, of the path with the least sum of weight · error²; the lowest of a code's
    bits is the path's.

    values: [..., 16] float32. weights: likewise, or what is broadcast to it. levels: ascending.
    """
    flat = values.reshape(-1, CHUNK)
    places, costs = _of_subsets(flat, levels)
    costs *= np.broadcast_to(weights, values.shape).reshape(-1, CHUNK)
    path, rows = _cheapest(costs), np.arange(len(flat))[:, None]
    found = places[_subsets(path), rows, np.arange(CHUNK)]
    return (found << 1 | path).astype(np.uint8).reshape(values.shape)


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
    """[4, chunks, 16]: the nearest level's place in each subset, and the squared error."""
    places, costs = [], []
    for subset in range(SUBSETS):
        own = levels[subset::SUBSETS].astype(np.float32)
        place = np.searchsorted((own[1:] + own[:-1]) / 2, values)
        places.append(place)
        costs.append(np.square(values - own[place]))
    return np.stack(places), np.stack(costs)


def _cheapest(costs: Array) -> Array:
    """[chunks, 16] int64: the path of least cost that ends where it began (Viterbi, 1967), of all
    states to begin in; costs: [4, chunks, 16] float32."""
    count = costs.shape[1]
    so_far = np.full((count, _STATES, _STATES), np.inf, np.float32)  # by first and last state
    so_far[:, range(_STATES), range(_STATES)] = 0
    came = np.zeros((CHUNK, count, _STATES, _STATES), np.int64)
    for number in range(CHUNK):
        step = np.empty_like(so_far)
        for state in range(_STATES):
            own, last = state & 1, state >> 1
            ways = [
                so_far[:, :, last + 2 * before] + costs[last + 2 * (own ^ before), :, number, None]
                for before in (0, 1)
            ]
            came[number, :, :, state] = ways[1] < ways[0]
            step[:, :, state] = np.where(ways[1] < ways[0], ways[1], ways[0])
        so_far = step
    first = np.diagonal(so_far, axis1=1, axis2=2).argmin(1)
    path, state, rows = np.zeros((count, CHUNK), np.int64), first.copy(), np.arange(count)
    for number in reversed(range(CHUNK)):
        path[:, number] = state & 1
        state = (state >> 1) + 2 * came[number, rows, first, state]
    return path
