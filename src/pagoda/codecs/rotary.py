"""Rotary positions, put on vectors and taken off again."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pagoda.kernels.array import Array


@dataclass(frozen=True, eq=False, slots=True)
class Rotary:
    """Of a head's first 2 r numbers, number i is rotated with number i + r; the others stay."""

    cosines: Array
    """[positions, r] float32; a rotation may make vectors longer too. No columns: it rotates
    nothing."""
    sines: Array

    def put_on(self, vectors: Array, first: int) -> Array:
        """vectors: [tokens, heads, head_size] float32 of positions from `first` on."""
        cosines, sines = self._of(vectors, first)
        return self._rotated(vectors, cosines, sines)

    def take_off(self, vectors: Array, first: int) -> Array:
        """What `put_on` was given."""
        cosines, sines = self._of(vectors, first)
        squares = np.square(cosines) + np.square(sines)
        return self._rotated(vectors, cosines / squares, -sines / squares)

    def _of(self, vectors: Array, first: int) -> tuple[Array, Array]:
        rows = slice(first, first + len(vectors))
        assert rows.stop <= len(self.cosines)
        return self.cosines[rows, None], self.sines[rows, None]

    def _rotated(self, vectors: Array, cosines: Array, sines: Array) -> Array:
        half = self.cosines.shape[1]
        left, right = vectors[..., :half], vectors[..., half : 2 * half]
        turned = (left * cosines - right * sines, right * cosines + left * sines)
        return np.concatenate([*turned, vectors[..., 2 * half :]], axis=-1)
