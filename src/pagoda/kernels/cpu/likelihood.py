"""The order of tokens, and their weights, in a row of logits.

Ranks: the largest first, equal ones by ascending id. A weight is exp((logit - largest) /
temperature), a power of two here: `scale` is log2(e) / temperature.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from pagoda.kernels.array import Array
from pagoda.kernels.cpu.number import exp2

# Floats as whole numbers in the order of their values, both kinds of NaN above plus infinity.
_SIGN, _REST = np.int32(-(2**31)), np.int32(2**31 - 1)
_SHIFT = np.int32(0x7FFFFF)  # brings minus infinity to the bottom and what lies below it to the top
MINUS_INFINITY_KEY, INFINITY_KEY = _SIGN, np.int32(0x7F000001)


@njit(error_model="numpy")
def key_of(bits: np.int32) -> np.int32:
    """A whole number that orders as the float32 with these bits does."""
    return np.int32(np.int32(bits ^ np.int32((bits >> np.int32(31)) & _REST)) - _SHIFT)


@njit(error_model="numpy")
def bits_of(key: np.int32) -> np.int32:
    """The inverse of `key_of`."""
    key = np.int32(key + _SHIFT)
    return np.int32(key ^ np.int32((key >> np.int32(31)) & _REST))


@njit(error_model="numpy")
def _ticket(bits: np.int32, token_id: int) -> int:
    """Tickets ascend in the order of ranks; the lower half is the id. Zeros of both signs tie."""
    key = key_of(np.int32(0) if bits == _SIGN else bits)
    return int(~np.int64(key) << 32) | token_id


@njit(error_model="numpy")
def rank_ids(row: Array, ids: Array) -> None:
    """Bring some ids, int64, into the order of ranks."""
    bits = row.view(np.int32)
    for i in range(ids.shape[0]):
        ids[i] = _ticket(bits[ids[i]], ids[i])
    ids.sort()
    for i in range(ids.shape[0]):
        ids[i] &= np.int64(_REST)


@njit(error_model="numpy")
def weigh(values: Array, largest: np.float32, scale: np.float32, out: Array) -> None:
    """Write the weight of each value, float32; out may be longer."""
    for i in range(values.shape[0]):
        out[i] = exp2((values[i] - largest) * scale)


@njit(fastmath={"nsz", "reassoc"}, error_model="numpy")
def add_up(weights: Array) -> np.float32:
    """Their sum, in whichever order is quickest, the same for as many weights."""
    # Apart from `weigh`: sums in any order would undo the rounding that exp2 lives on.
    total = np.float32(0.0)
    for i in range(weights.shape[0]):
        total += weights[i]
    return total
