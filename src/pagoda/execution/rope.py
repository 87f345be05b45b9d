"""Cosines and sines of every position, made once when a model is loaded."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pagoda.models.decoder import RopeSpec


@dataclass(frozen=True, slots=True)
class RotaryTables:
    """The rotation of each position, `attention_factor` included."""

    cosines: NDArray[np.float32]
    """[positions, rotary_dim / 2]; no columns where nothing is rotated."""
    sines: NDArray[np.float32]
    """As `cosines`."""

    @classmethod
    def of(cls, rope: RopeSpec | None, num_positions: int) -> RotaryTables:
        """Tables for positions 0 … num_positions - 1; without `rope`, tables that rotate nothing.

        Angles are float32 products of position and frequency, as checkpoints were trained with.
        """
        inv_freq = np.array(() if rope is None else rope.inv_freq, np.float32)
        factor = np.float32(1.0 if rope is None else rope.attention_factor)
        angles = np.arange(num_positions, dtype=np.float32)[:, None] * inv_freq
        return cls(np.cos(angles) * factor, np.sin(angles) * factor)
