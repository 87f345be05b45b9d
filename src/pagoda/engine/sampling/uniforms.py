"""The random numbers of draws, each a pure function of a seed and a position."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_MASK = 2**64 - 1
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def uniforms(seeds: Sequence[int], positions: Sequence[int]) -> NDArray[np.float64]:
    """float64 [rows] in [0, 1): a pure function of each row's seed and position.

    The generator is SplitMix64 (Steele, Lea, Flood 2014), entered at `position`; the seed passes
    through its finaliser first, so that neighbouring seeds share no stream.
    """
    start = np.array([seed & _MASK for seed in seeds], dtype=np.uint64)
    step = np.array(positions, dtype=np.uint64) + np.uint64(1)
    bits = _mix(_mix(start + _GOLDEN) + step * _GOLDEN)
    return np.ldexp((bits >> np.uint64(11)).astype(np.float64), -53)


def _mix(bits: NDArray[np.uint64]) -> NDArray[np.uint64]:
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))
