"""Means, products and samples of keys and values in a run of layers, which come one by one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pagoda.cache.slots import num_blocks_for
from pagoda.kernels.array import Array

SAMPLE_TOKENS = 16
"""Of a block that is kept."""
_SAMPLES = 2
"""Blocks of a sequence that are kept."""


class SideSums:
    """Of keys, or values."""

    def __init__(self, size: int) -> None:
        self._total = np.zeros(size)
        self._products = np.zeros((size, size))

    def add(self, vectors: Array) -> None:
        """vectors: [tokens, size]"""
        self._total += vectors.sum(0, dtype=np.float64)
        self._products += vectors.T @ vectors

    def moments(self, num_tokens: int) -> tuple[Array, Array]:
        """Mean and covariance of all that came, which was so many."""
        mean = self._total / num_tokens
        return mean, self._products / num_tokens - np.outer(mean, mean)


class RunSums:
    """`add` is called for each layer of a sequence, and then for each of the next."""

    def __init__(self, layer_ids: Sequence[int], size: int) -> None:
        """`size`: numbers of a token's keys, or values, in all the layers."""
        self.layer_ids = tuple(layer_ids)
        self.keys, self.values = SideSums(size), SideSums(size)
        self.samples: list[tuple[Array, Array]] = []
        """Keys and values of some blocks, [SAMPLE_TOKENS, size]; the last of a sequence may have
        fewer."""
        self._come: dict[int, tuple[Array, Array]] = {}
        """Of this sequence, by layer."""

    def add(self, layer_id: int, keys: Array, values: Array) -> None:
        """keys, values: [tokens, numbers of the layer], kept until the run is whole."""
        self._come[layer_id] = keys, values
        if len(self._come) < len(self.layer_ids):
            return
        sides = zip(*(self._come[each] for each in self.layer_ids), strict=True)
        keys, values = (np.concatenate(side, axis=1) for side in sides)
        self._come = {}
        self.keys.add(keys)
        self.values.add(values)
        for start in range(0, len(keys), num_blocks_for(len(keys), _SAMPLES)):
            sampled = slice(start, start + SAMPLE_TOKENS)
            self.samples.append((keys[sampled].copy(), values[sampled].copy()))
