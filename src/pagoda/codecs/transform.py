"""Transforms: keys, or values, of neighbouring layers as numbers that vary independently.

As KVTC has them (Staniszewski and Łańcucki, arXiv 2511.01815), with a basis for each side of a run
of layers: all of their heads together, the mean taken out, in units of what an error costs. So one
step suits all numbers. Those that vary less than a step become zeros, and take next to no bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from pagoda.kernels.array import Array

_SHARE = 0.01
"""Of the metric's mean diagonal, added to it: directions that no query asked for count too."""
_TINY = 1e-12


class Moments(NamedTuple):
    """What calibration knows of keys, or values, of n numbers: all heads', in a row."""

    mean: Array
    """[n] float64"""
    covariance: Array
    """[n, n] float64"""
    metric: Array
    """[heads, head_size, head_size] float64: an error e of a head costs eᵀ M e."""


@dataclass(frozen=True, eq=False, slots=True)
class SideTransform:
    """Row vectors are multiplied from the left. Only rounding to steps, which follows, loses."""

    mean: Array
    """[n] float32"""
    forward: Array
    """[n, n] float32"""
    back: Array
    """[n, n] float32, its inverse"""
    sigma: Array
    """[n] float32: how much the numbers vary, the most first."""

    @classmethod
    def fit(cls, moments: Moments) -> SideTransform:
        """The Karhunen–Loève basis of the covariance, in units of the metric.

        Raises `ValueError` for moments that are not finite.
        """
        if not all(np.isfinite(each).all() for each in moments):
            raise ValueError("moments are not finite")
        lower = _block_diagonal(_lower(moments.metric))
        sigma2, turns = np.linalg.eigh(lower.T @ moments.covariance @ lower)
        sigma2, turns = sigma2[::-1].clip(0), turns[:, ::-1]
        return cls(
            mean=moments.mean.astype(np.float32),
            forward=(lower @ turns).astype(np.float32),
            back=np.linalg.solve(lower.T, turns).T.astype(np.float32),
            sigma=np.sqrt(sigma2).astype(np.float32),
        )

    def turn(self, vectors: Array) -> Array:
        """vectors, and what is returned: [tokens, n] float32."""
        return np.matmul(vectors - self.mean, self.forward)

    def turn_back(self, numbers: Array) -> Array:
        """What `turn` was given: likewise. What is 0 behind the last that is not costs nothing."""
        used = np.flatnonzero(numbers.any(0))
        count = int(used[-1]) + 1 if len(used) else 0
        return np.matmul(numbers[:, :count], self.back[:count]) + self.mean


class RunTransform(NamedTuple):
    """Of layers that share a basis."""

    layer_ids: tuple[int, ...]
    key: SideTransform
    """Of keys as they are before they are rotated."""
    value: SideTransform

    @property
    def sides(self) -> tuple[SideTransform, SideTransform]:
        """Keys and values."""
        return self.key, self.value


def _lower(metric: Array) -> Array:
    size = metric.shape[-1]
    means = np.trace(metric, axis1=-2, axis2=-1) / size
    return np.linalg.cholesky(metric + (_SHARE * means + _TINY)[:, None, None] * np.eye(size))


def _block_diagonal(parts: Array) -> Array:
    """[heads * size, heads * size] of parts, [heads, size, size]"""
    heads, size, _ = parts.shape
    whole = np.zeros((heads, size, heads, size))
    for head, part in enumerate(parts):
        whole[head, :, head] = part
    return whole.reshape(heads * size, heads * size)
