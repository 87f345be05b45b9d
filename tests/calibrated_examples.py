"""Vectors of a layer such as models make, and codecs that are calibrated for them."""

from __future__ import annotations

from functools import cache

import numpy as np

from pagoda.codecs.calibrate import Observed, calibrate
from pagoda.codecs.calibrated import CALIBRATED, CalibratedCodec
from pagoda.codecs.codec import Codec
from pagoda.kernels.array import Array

NUM_TOKENS = 2000


def vectors(heads: int, size: int, seed: int, num_tokens: int = NUM_TOKENS) -> Array:
    """[heads, num_tokens, size] float32: correlated, of uneven lengths, and not around zero."""
    rng = np.random.default_rng(seed)
    mixing = rng.normal(size=(heads, size, size)) * 0.8 ** np.arange(size)[:, None]
    means = rng.normal(size=(heads, 1, size))
    lengths = np.exp(rng.normal(size=(heads, num_tokens, 1)) / 2)
    made = (rng.normal(size=(heads, num_tokens, size)) @ mixing + means) * lengths
    return np.asarray(made, np.float32)


@cache
def observed(heads: int, size: int, seed: int) -> Observed:
    """Such vectors, and queries of the same kind to read them."""
    keys, queries = vectors(heads, size, seed), vectors(heads, size, seed + 1000)
    metric, moments = (
        each.astype(np.float64).swapaxes(1, 2) @ each / NUM_TOKENS for each in (queries, keys)
    )
    return Observed(metric, moments, keys)


@cache
def side(name: str, which: str, heads: int, size: int, seed: int = 0) -> CalibratedCodec:
    """The calibrated codec of a format's keys, or values."""
    return calibrate(getattr(CALIBRATED[name], which), observed(heads, size, seed))


def codec(name: str, heads: int, size: int, seed: int = 0) -> Codec:
    """Of both."""
    return Codec(side(name, "key", heads, size, seed), side(name, "value", heads, size, seed + 1))
