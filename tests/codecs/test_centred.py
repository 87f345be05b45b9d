"""Keys less what all of them have in common: what that saves, and that attention cannot tell."""

from __future__ import annotations

import numpy as np
import pytest

from pagoda.codecs import CODECS, Codec
from pagoda.kernels.array import Array

HEADS, TOKENS, SIZE = 3, 200, 32
FORM = CODECS["fp8_e4m3"].key
RNG = np.random.default_rng(4)
MEAN = (RNG.normal(size=(HEADS, SIZE)) * 4).astype(np.float32)
KEYS = (RNG.normal(size=(HEADS, TOKENS, SIZE)) + MEAN[:, None]).astype(np.float32)
QUERIES = RNG.normal(size=(HEADS, 50, SIZE)).astype(np.float32)
CENTRED = Codec(FORM, FORM, MEAN)


def weights(queries: Array, keys: Array) -> Array:
    scores = np.einsum("hqi,hti->hqt", queries, keys).astype(np.float64)
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def test_attention_weighs_tokens_as_if_the_mean_were_given_back() -> None:
    stored = FORM.recall(KEYS - MEAN[:, None])
    told = CENTRED.recall_keys(KEYS)
    assert told == pytest.approx(stored + MEAN[:, None], abs=1e-5)
    assert weights(QUERIES, stored) == pytest.approx(weights(QUERIES, told), rel=1e-4, abs=1e-9)


def test_what_means_are_large_in_loses_less() -> None:
    recalled = (FORM.recall(KEYS), CENTRED.recall_keys(KEYS))
    plain, centred = (np.square(each - KEYS).mean() for each in recalled)
    assert centred < 0.2 * plain


def test_any_number_of_tokens_and_other_means_are_another_codec() -> None:
    one = CENTRED.recall_keys(KEYS[:, 0])
    assert np.array_equal(one, CENTRED.recall_keys(KEYS)[:, 0])
    other = MEAN.copy()
    other[1, 5] += 1e-3
    digests = {Codec(FORM, FORM, mean).digests for mean in (MEAN, other, MEAN.copy(), None)}
    assert len(digests) == 3
    assert Codec(FORM, FORM, MEAN.copy()) == CENTRED
    assert len({CENTRED, Codec(FORM, FORM, MEAN.copy()), Codec(FORM, FORM, other)}) == 2
    assert Codec(FORM, FORM).digests == ()
    assert np.array_equal(Codec(FORM, FORM).recall_keys(KEYS), FORM.recall(KEYS))
