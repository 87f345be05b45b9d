"""Finds the levels of a trellis: those of least cost for the paths that are nearest with them."""

from __future__ import annotations

import numpy as np

from pagoda.codecs.calibrated import CalibratedCodec, path_widths
from pagoda.codecs.levels import LARGEST
from pagoda.codecs.trellis import level_places, nearest_path
from pagoda.kernels.array import Array
from pagoda.kernels.vector_code import CHUNK, ufloat8_values

_ROUNDS = 4
_MOST_CHUNKS = 4096
"""Of those that levels are found for."""


def fit_paths(codec: CalibratedCodec, samples: Array) -> dict[int, Array]:
    """Levels by their bits, [2 ** (bits + 1)] int8 each, for a codec that has none yet.

    samples: [num_kv_heads, tokens, head_size] float32.
    """
    turned = np.matmul(samples, codec.vectors).astype(np.float32)
    scales = ufloat8_values()[codec.scales(turned)][..., None]
    scaled = np.divide(turned, scales, out=np.zeros_like(turned), where=scales > 0)
    widths = codec.code(samples.shape[-1]).widths
    found = {}
    for width in path_widths(widths):
        chunks = [
            slice(chunk * CHUNK, chunk * CHUNK + CHUNK)
            for chunk, each in enumerate(widths)
            if each == width
        ]
        step = -(-samples.shape[0] * samples.shape[1] * len(chunks) // _MOST_CHUNKS)
        parts, weights = [], []
        for chunk in chunks:
            part = scaled[..., chunk]
            counts = np.broadcast_to(codec.weights[:, None, chunk], part.shape)
            squares = np.square(scales)
            parts.append(part.reshape(-1, CHUNK)[::step])
            weights.append((counts * squares).reshape(-1, CHUNK)[::step])
        start = _apart(codec.levels[width].values.astype(np.float32))
        found[width] = _fitted(np.concatenate(parts), np.concatenate(weights), start)
    return found


def _apart(levels: Array) -> Array:
    """Two levels, a quarter of the way to the next ones, in place of each: states that come to
    the first ones, or the second, have about the levels that single numbers have."""
    way = np.gradient(levels) / 4
    return np.stack([levels - way, levels + way], -1).ravel()


def _fitted(values: Array, weights: Array, levels: Array) -> Array:
    """Levels, int8; values, weights: [chunks, 16]."""
    count = len(levels)
    for _ in range(_ROUNDS):
        places = level_places(nearest_path(values, weights, levels)).ravel()
        sums = np.bincount(places, (values * weights).ravel(), count)
        totals = np.bincount(places, weights.ravel(), count)
        levels = np.sort(np.where(totals > 0, sums / np.where(totals > 0, totals, 1), levels))
    return np.rint(levels).clip(-LARGEST, LARGEST).astype(np.int8)
