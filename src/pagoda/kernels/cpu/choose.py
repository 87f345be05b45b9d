"""Choosing a token from a row of logits, without ever sorting the vocabulary.

A row is read once to find its largest value, whether it is sound, and the largest value of every
chunk of 256. That is all a greedy choice needs. A draw goes on from there:

- without filters it adds up the chunks' weights, exp((logit - largest) / temperature), and looks
  for the token within one chunk: a second reading, in the order of ids;
- with top_k, top_p or min_p the order is that of ranks: the largest first, equal ones by ascending
  id. The chunks' largest values tell how low a threshold has to be to leave enough candidates, and
  most chunks lie below it. The candidates are sorted, a few dozen as a rule;
- where a nucleus is wider than the candidates, the draw is from `likelihood_classes`.

Whatever is done depends on the row alone, and so does its result.
"""

from __future__ import annotations

import numpy as np
from numba import njit, prange

from pagoda.kernels.array import Array
from pagoda.kernels.cpu.kernel import kernel
from pagoda.kernels.cpu.likelihood import (
    INFINITY_KEY,
    MINUS_INFINITY_KEY,
    add_up,
    bits_of,
    key_of,
    rank_ids,
    weigh,
)
from pagoda.kernels.cpu.likelihood_classes import draw_from_classes
from pagoda.kernels.cpu.number import LOG2_E, exp2

CHUNK = 256
"""Logits of which the largest is kept: small enough for top_k = 50 to need a few chunks only."""

# A nucleus is first sought among what is at least the largest of the 64th best chunk.
_NUCLEUS_CHUNKS = 64
_MOST_CANDIDATES = 1024

# Below this many rows a second thread costs more to wake than it saves.
_SERIAL_ROWS = 3


@njit(error_model="numpy")
def _largest_key(bits: Array) -> np.int32:
    largest = MINUS_INFINITY_KEY
    for i in range(bits.shape[0]):
        key = key_of(bits[i])
        if key > largest:
            largest = key
    return largest


@njit(error_model="numpy")
def _survey(row: Array) -> tuple[bool, Array]:
    """Whether the row is sound, and the largest value of each chunk."""
    bits = row.view(np.int32)
    maxima = np.empty((row.shape[0] + CHUNK - 1) // CHUNK, np.int32)
    largest = MINUS_INFINITY_KEY
    for chunk in range(maxima.shape[0]):
        key = _largest_key(bits[chunk * CHUNK : (chunk + 1) * CHUNK])
        maxima[chunk] = bits_of(key)
        largest = max(largest, key)
    return bool(MINUS_INFINITY_KEY < largest < INFINITY_KEY), maxima.view(np.float32)


@njit(error_model="numpy")
def _first_largest(row: Array, maxima: Array) -> int:
    best = 0
    for chunk in range(1, maxima.shape[0]):
        if maxima[chunk] > maxima[best]:
            best = chunk
    i = best * CHUNK
    while i < row.shape[0] - 1 and row[i] != maxima[best]:
        i += 1
    return i


# ---- the order of ids ------------------------------------------------------------------------


@njit(error_model="numpy")
def _weigh_chunks(row: Array, largest: np.float32, scale: np.float32, out: Array) -> float:
    """Write the weight of every chunk, float64; returns that of the whole row."""
    own = np.empty(CHUNK, np.float32)
    total = 0.0
    for chunk in range(out.shape[0]):
        values = row[chunk * CHUNK : (chunk + 1) * CHUNK]
        weigh(values, largest, scale, own)
        out[chunk] = add_up(own[: values.shape[0]])
        total += out[chunk]
    return total


@njit(error_model="numpy")
def _draw_by_id(row: Array, largest: np.float32, scale: np.float32, uniform: float) -> int:
    weights = np.empty((row.shape[0] + CHUNK - 1) // CHUNK)
    target = uniform * _weigh_chunks(row, largest, scale, weights)
    before, chunk = 0.0, 0
    while chunk < weights.shape[0] - 1 and before + weights[chunk] <= target:
        before += weights[chunk]
        chunk += 1
    while weights[chunk] == 0.0:  # the target was the very end, and no weight follows
        chunk -= 1
    # The chunk's sum was rounded in another order, so the target may lie a hair beyond its end.
    drawn = chunk * CHUNK
    for i in range(chunk * CHUNK, min((chunk + 1) * CHUNK, row.shape[0])):
        weight = exp2((row[i] - largest) * scale)
        if weight > np.float32(0.0):
            drawn = i
            before += weight
            if before > target:
                break
    return drawn


# ---- the order of ranks ----------------------------------------------------------------------


@njit(error_model="numpy")
def _gather(row: Array, maxima: Array, threshold: float, out: Array) -> int:
    """Write the ids of all values from `threshold` on; how many, or more than `out` holds."""
    count = 0
    for chunk in range(maxima.shape[0]):
        if maxima[chunk] >= threshold:
            for i in range(chunk * CHUNK, min((chunk + 1) * CHUNK, row.shape[0])):
                if row[i] >= threshold:
                    if count == out.shape[0]:
                        return count + 1
                    out[count] = i
                    count += 1
    return count


@njit(error_model="numpy")
def _threshold(
    maxima: Array, largest: np.float32, scale: np.float32, top_k: int, min_p: np.float32
) -> float:
    """A value with the candidates above it: all that top_k or min_p keep, or a likely nucleus."""
    by_min_p = -np.inf
    if min_p > np.float32(0.0):
        octaves = np.log2(np.float64(min_p)) - 1e-3  # a little more than it keeps
        by_min_p = np.float64(largest) + octaves / np.float64(scale)
    rank = min(_NUCLEUS_CHUNKS, maxima.shape[0])
    if 0 < top_k <= maxima.shape[0]:
        rank = top_k
    elif min_p > np.float32(0.0):
        return by_min_p
    chunks = np.arange(maxima.shape[0])
    rank_ids(maxima, chunks)
    return max(np.float64(maxima[chunks[rank - 1]]), by_min_p)


@njit(error_model="numpy")
def _draw_candidate(
    row: Array, maxima: Array, largest: np.float32, scale: np.float32,
    top_k: int, top_p: float, min_p: np.float32, uniform: float,
) -> tuple[bool, int]:  # fmt: skip
    """Whether the candidates are enough to tell, and the token if so."""
    candidates = np.empty(min(_MOST_CANDIDATES, row.shape[0]), np.int64)
    count = _gather(row, maxima, _threshold(maxima, largest, scale, top_k, min_p), candidates)
    if count > candidates.shape[0]:
        return False, 0
    ranked = candidates[:count]
    rank_ids(row, ranked)
    cumulative = np.empty(count)
    mass, kept = 0.0, 0
    most = min(count, top_k) if top_k > 0 else count
    for rank in range(most):
        weight = exp2((row[ranked[rank]] - largest) * scale)
        if weight < min_p:
            break
        mass += weight
        cumulative[rank] = mass
        kept += 1
    limited = count == row.shape[0] or min_p > np.float32(0.0) or 0 < top_k <= count
    whole = mass
    if not limited:
        if top_k > 0:  # the mass of so many tokens is not known
            return False, 0
        whole = _weigh_chunks(row, largest, scale, np.empty(maxima.shape[0]))
        if mass < top_p * whole:
            return False, 0
    # A token stays while those before it hold less than the limit.
    last = 0
    while last < kept - 1 and cumulative[last] < top_p * whole:
        last += 1
    drawn = 0
    while drawn < last and cumulative[drawn] <= uniform * cumulative[last]:
        drawn += 1
    return True, ranked[drawn]


# ---- any row ---------------------------------------------------------------------------------


@njit(error_model="numpy")
def _choose(
    row: Array, temperature: np.float32,
    top_k: int, top_p: float, min_p: np.float32, uniform: float,
) -> tuple[bool, int]:  # fmt: skip
    """Whether the row is sound, and its token."""
    sound, maxima = _survey(row)
    first = _first_largest(row, maxima)
    if temperature == np.float32(0.0) or not sound:
        return sound, first
    largest, scale = row[first], LOG2_E / temperature
    if top_k == 0 and top_p == 1.0 and min_p == np.float32(0.0):
        return sound, _draw_by_id(row, largest, scale, uniform)
    if top_k >= row.shape[0]:  # keeps all, but the order is that of ranks
        top_k = 0
    resolved, drawn = _draw_candidate(row, maxima, largest, scale, top_k, top_p, min_p, uniform)
    if not resolved:
        drawn = draw_from_classes(row, largest, scale, top_k, top_p, min_p, uniform)
    return sound, drawn


@kernel
def choose_largest(ids: Array, sound: Array, logits: Array) -> None:
    """As `choose` at temperature 0."""
    if logits.shape[0] < _SERIAL_ROWS:
        for row in range(logits.shape[0]):
            sound[row], maxima = _survey(logits[row])
            ids[row] = _first_largest(logits[row], maxima)
    else:
        for row in prange(logits.shape[0]):
            sound[row], maxima = _survey(logits[row])
            ids[row] = _first_largest(logits[row], maxima)


@kernel
def choose(
    ids: Array, sound: Array, logits: Array, temperature: Array,
    top_k: Array, top_p: Array, min_p: Array, uniform: Array,
) -> None:  # fmt: skip
    """Write to ids: [rows] int64 a token of each row of `logits` [rows, vocab] float32.

    Writes to sound: [rows] bool whether a row has neither NaN nor plus infinity and something
    finite; the token of one that is not sound means nothing.

    temperature: [rows] float32, at 0 the largest is chosen, of equals the lowest id; top_k:
    [rows] int64, 0 keeps all; top_p: [rows] float64; min_p: [rows] float32; uniform: [rows]
    float64 in [0, 1). A token stays while its weight is at least `min_p` of the largest, its
    rank below `top_k`, and while those before it hold less than `top_p` of what the other two
    leave. A weight of 0 is never drawn.
    """
    if logits.shape[0] < _SERIAL_ROWS:
        for row in range(logits.shape[0]):
            sound[row], ids[row] = _choose(
                logits[row], temperature[row], top_k[row], top_p[row], min_p[row], uniform[row]
            )
    else:
        for row in prange(logits.shape[0]):
            sound[row], ids[row] = _choose(
                logits[row], temperature[row], top_k[row], top_p[row], min_p[row], uniform[row]
            )
