"""Which of a few levels is nearest to each of many numbers."""

from __future__ import annotations

import numpy as np

from pagoda.kernels.array import Array

_AT_ONCE = 1 << 14
"""Numbers that are compared with all bounds together: they stay in a core's cache."""


def nearest_places(values: Array, bounds: Array) -> Array:
    """Of each number how many bounds are below it: uint8, of the shape of values.

    bounds: up to 255, halfway from level to level. Comparing with one after the other takes a
    sixth of the time of NumPy's binary search for 7 of them, half of it for 63.
    """
    flat = np.ascontiguousarray(values).ravel()
    places = np.zeros(flat.shape, np.uint8)
    for first in range(0, len(flat), _AT_ONCE):
        part = slice(first, first + _AT_ONCE)
        numbers, below = flat[part], places[part]
        for bound in bounds:
            below += numbers > bound
    return places.reshape(values.shape)
