"""What keys have in common at all positions, beside the keys themselves."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from decoders import decoder_spec, random_weights, rope_spec, tokens

from pagoda.codecs import Codec, VectorCodec
from pagoda.execution.cpu.executor import CPUExecutor
from pagoda.execution.cpu.key_means import FIRST_TOKENS, KeyMeans
from pagoda.execution.cpu.panel_weights import PanelWeights
from pagoda.execution.cpu.vector_statistics import whole_sequence
from pagoda.kernels.array import Array
from pagoda.models.decoder import AttentionSpec, RopeSpec
from pagoda.storage.cpu_storage import CPUStorage

LONGEST = 2048
SLOW = RopeSpec((0.9, 2e-3, 1e-5, 0.0), 1.3)
PART = AttentionSpec(6, 2, 32, 32**-0.5, SLOW, qkv_bias=True)
NOWHERE = AttentionSpec(4, 4, 16, 0.2, None, sliding_window=9)
WHOLE = AttentionSpec(4, 2, 32, 0.2, rope_spec(32), qkv_bias=True)
SPEC = replace(decoder_spec([PART, NOWHERE, WHOLE]), max_position_embeddings=LONGEST)
TEXTS = [tokens(60, 1), tokens(45, 2)]


def executor() -> CPUExecutor:
    spec = SPEC.cache_spec(16, "float32")
    storage = CPUStorage(spec, 8 * len(spec.groups))
    return CPUExecutor(SPEC, PanelWeights.take_over(random_weights(SPEC)), storage, 64, 2)


class Exact(VectorCodec):
    """Loses nothing, so that nothing is moved."""

    def recall(self, vectors: Array) -> Array:
        return vectors


E4M3 = VectorCodec("e4m3", 8)


@pytest.fixture(scope="module")
def means() -> KeyMeans:
    means, own = KeyMeans(SPEC), executor()
    for text in TEXTS:
        means.read(own, text)
    return means


@pytest.fixture(scope="module")
def found(means: KeyMeans) -> list[Array | None]:
    return list(means.of_layers(Exact("e4m3", 8)))


@pytest.fixture(scope="module")
def keys() -> list[list[Array]]:
    """Of each layer and text: [tokens, num_kv_heads, head_dim], rotated."""
    seen: list[list[Array]] = [[] for _ in SPEC.layers]
    own = executor()

    def add(layer: int, rows: Array) -> None:
        attention = SPEC.layers[layer].attention
        size = attention.head_dim
        first = attention.num_heads * size
        part = rows[:, first : first + attention.num_kv_heads * size]
        seen[layer].append(part.reshape(len(rows), -1, size).copy())

    spec = own.storage.spec
    for text in TEXTS:
        own.observe(whole_sequence(text, spec.windows, spec.block_size), add)
    return seen


def test_a_layer_without_positions_leaves_out_half_of_the_mean(
    found: list[Array | None], keys: list[list[Array]]
) -> None:
    counted = np.concatenate([text[FIRST_TOKENS:] for text in keys[1]])
    assert found[1] == pytest.approx(counted.mean(0) / 2, abs=1e-4)


@pytest.mark.parametrize("layer", [0, 2])
def test_of_rotated_keys_half_of_the_mean_over_contexts_of_three_lengths(
    found: list[Array | None], keys: list[list[Array]], layer: int
) -> None:
    """Each key put at every position of contexts of 2,048, 1,024 and 512 tokens, all alike."""
    attention = SPEC.layers[layer].attention
    rates = np.array(attention.rope.inv_freq)
    half = len(rates)
    total = np.zeros((attention.num_kv_heads, half), complex)
    for text in keys[layer]:
        pairs = text[..., :half] + 1j * text[..., half : 2 * half]
        at_zero = pairs * np.exp(-1j * np.outer(np.arange(len(text)), rates))[:, None]
        total += at_zero[FIRST_TOKENS:].sum(0)
    mean = total / sum(len(text) - FIRST_TOKENS for text in keys[layer])
    contexts = [np.exp(1j * np.outer(np.arange(n), rates)).mean(0) for n in (2048, 1024, 512)]
    common = mean * np.mean(contexts, axis=0) / 2
    assert found[layer] is not None
    assert found[layer][:, :half] == pytest.approx(common.real, abs=2e-3)
    assert found[layer][:, half : 2 * half] == pytest.approx(common.imag, abs=2e-3)
    rest = np.concatenate([text[FIRST_TOKENS:, :, 2 * half :] for text in keys[layer]]).mean(0)
    assert found[layer][:, 2 * half :] == pytest.approx(rest / 2, abs=1e-4)
    fast, still = np.abs(common[:, 0]), np.abs(common[:, -1])
    assert fast.max() < 0.02 * still.max()


def test_first_tokens_keep_their_keys_exactly(
    means: KeyMeans, found: list[Array | None], keys: list[list[Array]]
) -> None:
    for layer, moved in enumerate(means.of_layers(E4M3)):
        first, whole = keys[layer][-1][0], found[layer]
        assert moved is not None
        assert whole is not None
        stored = Codec(E4M3, E4M3, moved).recall_keys(first)
        assert stored == pytest.approx(first, abs=1e-6)
        assert not np.array_equal(E4M3.recall(first), first)
        assert (np.abs(moved - whole) <= np.abs(first - whole) / 16 + 2.0**-10).all()


@pytest.mark.parametrize("far", [900.0, -900.0, np.inf, np.nan])
def test_what_the_form_cuts_off_moves_nothing(far: float) -> None:
    """The first token's key may be far from all others, or no number."""
    means = KeyMeans(SPEC)
    means.read(executor(), TEXTS[0])
    whole = list(means.of_layers(Exact("e4m3", 8)))[1]
    means._first[1][0, 0] = far
    moved = list(means.of_layers(E4M3))[1]
    assert whole is not None
    assert moved is not None
    assert moved[0, 0] == whole[0, 0]
    assert np.isfinite(moved).all()


def test_means_that_are_no_numbers_leave_nothing_out() -> None:
    means = KeyMeans(SPEC)
    means.read(executor(), TEXTS[0])
    total = means._sums[1]
    assert total is not None
    total[0, :2] = np.nan, np.inf
    means._first[1][0, :2] = 3.0, 0.3
    moved = list(means.of_layers(E4M3))[1]
    assert moved is not None
    assert np.abs(moved[0, :2]).max() < 0.2


def test_a_sequence_of_first_tokens_alone_tells_nothing() -> None:
    means = KeyMeans(SPEC)
    means.read(executor(), tokens(FIRST_TOKENS - 1))
    exact = list(means.of_layers(Exact("e4m3", 8)))
    assert all(each is not None and not each.any() for each in exact)
