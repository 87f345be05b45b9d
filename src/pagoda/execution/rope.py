"""Cosines and sines of every position, made once when a model is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from pagoda.models.decoder import RopeSpec

_AT_ONCE = 2**16
"""Positions, which bounds what making the tables takes."""


@dataclass(frozen=True, slots=True)
class RotaryTables:
    """The rotation of each position, `attention_factor` included."""

    cosines: NDArray[np.float32]
    """[positions, rotary_dim / 2]; no columns where nothing is rotated."""
    sines: NDArray[np.float32]
    """As `cosines`."""

    @classmethod
    def of(
        cls, rope: RopeSpec | None, num_positions: int, made_for: int | None = None
    ) -> RotaryTables:
        """Tables for positions 0 … num_positions - 1; without `rope`, tables that rotate nothing.

        Angles are float32 products of position and frequency, as checkpoints were trained with, up
        to the `made_for` positions of a model (None: all). Further on float32 would miss the angle
        between neighbours by more and more, so these are float64's, rounded as sines and cosines.
        """
        inv_freq = np.array(() if rope is None else rope.inv_freq, np.float32)
        factor = np.float32(1.0 if rope is None else rope.attention_factor)
        made_for = num_positions if made_for is None else min(made_for, num_positions)
        cosines = np.empty((num_positions, len(inv_freq)), np.float32)
        sines = np.empty_like(cosines)
        starts = [*range(0, made_for, _AT_ONCE), *range(made_for, num_positions, _AT_ONCE)]
        for first, last in pairwise((*starts, num_positions)):
            wide = np.float32 if first < made_for else np.float64
            angles = np.arange(first, last).astype(wide)[:, None] * inv_freq.astype(wide)
            for table, function in ((cosines, np.cos), (sines, np.sin)):
                np.multiply(function(angles), factor, out=table[first:last], casting="same_kind")
        return cls(cosines, sines)
