"""Finds a basis and levels for the keys, or values, of a layer from what it does with a text.

What an error e of a vector costs is eᵀ M e: for keys M = E[q qᵀ] over the queries that read them,
for values M = Σ Wᵀ W over the output projection's columns that take them. With M = L Lᵀ, and
U, σ² from Lᵀ E[x xᵀ] L,

    y = diag(1/σ) Uᵀ Lᵀ x

has numbers of variance 1, uncorrelated, where an error of number i costs σᵢ². Levels of each width
are those of least squared error (Lloyd, Max) for the text's vectors; from them those of trellises
are found, paths and levels in turn. What codes lose in length is made up for: ⟨y, ŷ⟩ = ⟨y, y⟩. A
mean is not taken out; it is what the first number holds.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from pagoda.codecs.calibrated import CalibratedCodec, code_of
from pagoda.codecs.levels import LARGEST, LevelTable, level_table
from pagoda.codecs.path_levels import fit_paths
from pagoda.errors import InvalidOptionError
from pagoda.kernels.array import Array
from pagoda.kernels.vector_code import CHUNK, MOST_PATH_BITS

_SHARE = 0.01
"""Of M's mean diagonal, added to it: directions that the text never asked for count something."""
_LEAST = 1e-5
"""Of the largest σ², the least of any number: what never varies is not blown up without end."""
_FAINT = 1e-2
"""Of a vector's root mean square, what a chunk's is at least taken for: likewise."""
_SHORTEST = 0.5
"""Of numbers whose root mean square is 1, what the outermost level is at least taken for."""
_ROOM = 1.25
"""By how much the outermost level of a trellis may be further out than that of single numbers."""
_MOST_STRETCH = 2.0
"""By how much a chunk's numbers become longer at most, however much their levels lose."""
_TINY = 1e-12
"""Added where something may be 0 that is divided by."""
_ROUNDS = 60
"""In which levels settle."""
_MOST_NUMBERS = 200_000
"""Of those that levels are found for."""


class Observed(NamedTuple):
    """What calibration knows of a layer's keys, or values."""

    metric: Array
    """M: [num_kv_heads, head_size, head_size] float64"""
    moments: Array
    """E[x xᵀ]: likewise"""
    samples: Array
    """[num_kv_heads, tokens, head_size] float32: some of the vectors"""


def calibrate(widths: tuple[int, ...], observed: Observed) -> CalibratedCodec:
    """The codec of those widths.

    Raises `InvalidOptionError` for heads that the widths do not suit, and where the model makes
    numbers of the text that are not finite.
    """
    head_size = observed.samples.shape[-1]
    if not all(np.isfinite(each).all() for each in observed):
        limit = "keys, values or queries of the text it is calibrated by are not finite"
        raise InvalidOptionError("kv_cache_dtype", "calibrated", limit)
    chunks = code_of(widths, head_size).widths
    forward, sigma2 = _whitening(observed.metric, observed.moments)
    whitened = np.matmul(observed.samples, forward)
    lengths = np.sqrt(np.square(whitened).mean(-1, keepdims=True)).clip(_TINY)
    levels, units = _fit_levels(whitened / lengths, chunks)
    turned = (forward * units).astype(np.float32)
    codec = CalibratedCodec(
        widths=widths,
        vectors=turned,
        queries=np.linalg.inv(turned.astype(np.float64)).swapaxes(-1, -2).astype(np.float32),
        weights=(sigma2 / np.square(units)).astype(np.float32),
        levels=levels,
        paths={},
        unit=float(np.sqrt(np.square(whitened / lengths * units).mean()).clip(_FAINT)),
    )
    return _stretched(replace(codec, paths=fit_paths(codec, observed.samples)), observed.samples)


def _whitening(metric: Array, moments: Array) -> tuple[Array, Array]:
    """What makes vectors, multiplied from the left, white, and σ² of each number: float64."""
    size = metric.shape[-1]
    means = np.trace(metric, axis1=-2, axis2=-1) / size
    lower = np.linalg.cholesky(metric + (_SHARE * means + _TINY)[:, None, None] * np.eye(size))
    sigma2, turns = np.linalg.eigh(lower.swapaxes(-1, -2) @ moments @ lower)
    sigma2, turns = sigma2[:, ::-1], turns[..., ::-1]
    sigma2 = np.maximum(sigma2, _LEAST * sigma2[:, :1] + _TINY)
    return lower @ turns / np.sqrt(sigma2)[:, None, :], sigma2


def _fit_levels(numbers: Array, chunks: tuple[int, ...]) -> tuple[dict[int, LevelTable], Array]:
    """Levels of each width, and what numbers are multiplied with to be in their units.

    numbers: [num_kv_heads, tokens, head_size]; units: [head_size]
    """
    units = np.ones(numbers.shape[-1])
    found = {}
    for width in sorted(set(chunks)):
        places = [chunk for chunk, each in enumerate(chunks) if each == width]
        parts = []
        for chunk in places:
            part = numbers[..., chunk * CHUNK : (chunk + 1) * CHUNK]
            rms = np.sqrt(np.square(part).mean()).clip(_FAINT)
            units[chunk * CHUNK : (chunk + 1) * CHUNK] = 1 / rms
            step = -(-part.size * len(places) // _MOST_NUMBERS)
            parts.append((part[:, ::step] / rms).ravel())
        levels = lloyd_max_of(np.concatenate(parts), width)
        outermost = np.abs(levels).max()
        if width <= MOST_PATH_BITS:
            outermost *= _ROOM
        unit = LARGEST / outermost.clip(_SHORTEST)
        found[width] = level_table(np.rint(levels * unit))
        for chunk in places:
            units[chunk * CHUNK : (chunk + 1) * CHUNK] *= unit
    return found, units


def lloyd_max_of(numbers: Array, bits: int) -> Array:
    """[2 ** bits] levels of least squared error for some numbers, in turn with bounds between."""
    ordered = np.sort(numbers)
    sums = np.concatenate([[0.0], np.cumsum(ordered, dtype=np.float64)])
    count = 2**bits
    levels = np.quantile(ordered, (np.arange(count) + 0.5) / count)
    for _ in range(_ROUNDS):
        cuts = np.searchsorted(ordered, (levels[1:] + levels[:-1]) / 2)
        edges = np.concatenate([[0], cuts, [len(ordered)]])
        counts = np.diff(edges)
        means = np.diff(sums[edges]) / counts.clip(1)
        levels = np.sort(np.where(counts > 0, means, levels))
    return levels


def _stretched(codec: CalibratedCodec, samples: Array) -> CalibratedCodec:
    """The same, each chunk's numbers longer by what their levels lose in length."""
    turned = np.matmul(samples, codec.vectors).astype(np.float32)
    back = codec.decode(*codec.encode(turned))
    by_number = (0, 1)
    shape = (-1, CHUNK)
    kept = (turned.astype(np.float64) * back).sum(by_number).reshape(shape).sum(1)
    whole = np.square(turned, dtype=np.float64).sum(by_number).reshape(shape).sum(1) + _TINY
    factors = whole / np.maximum(kept, whole / _MOST_STRETCH)
    queries = codec.queries * np.repeat(factors, CHUNK).astype(np.float32)
    return replace(codec, queries=queries)
