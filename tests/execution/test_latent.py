"""Latent attention on CPUs: as the reference, which makes every key and value, to the bit alone."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import cpu_executors
import numpy as np
import pytest
import torch
from cpu_executors import BLOCK_SIZE, DTYPES, NUM_TOKENS, make
from decoders import decoder_spec, random_weights, rope_spec, tokens

from pagoda.cache.latent import LatentLayerSpec
from pagoda.cache.spec import CacheSpec
from pagoda.codecs import LATENT_CODECS
from pagoda.errors import InvalidOptionError, UnsupportedModelError
from pagoda.execution.cpu.panel_weights import require_even_rows
from pagoda.execution.reference import reference_logits
from pagoda.kernels.array import Array
from pagoda.models.decoder import AttentionSpec, LatentAttentionSpec
from pagoda.storage.cpu_storage import CPUStorage

BY_LATENTS = LatentAttentionSpec(
    6, q_rank=20, rank=32, nope_dim=24, rope_dim=8, value_dim=16, scale=0.2, rope=rope_spec(8)
)
MANY_HEADS = LatentAttentionSpec(
    40, None, rank=40, nope_dim=10, rope_dim=4, value_dim=34, scale=0.3, rope=rope_spec(4),
    down_bias=True, output_bias=True,
)  # fmt: skip
GROUPED = AttentionSpec(6, 2, 32, 32**-0.5, rope_spec(32))
MIXED = decoder_spec([BY_LATENTS, BY_LATENTS, GROUPED, MANY_HEADS])
WIDE = replace(MANY_HEADS, rank=144)
"""In two groups of codes, the last of 16 numbers."""
run = partial(cpu_executors.run, MIXED)


@pytest.fixture(scope="module")
def expected() -> torch.Tensor:
    return reference_logits(MIXED, random_weights(MIXED), tokens(NUM_TOKENS), torch.float64)


def test_logits_are_those_of_the_reference(expected: torch.Tensor):
    logits = run("float32", [NUM_TOKENS])
    assert (logits - expected).abs().max() < 1e-4
    assert torch.equal(logits.argmax(-1), expected.argmax(-1))


def test_16_bits_are_as_near_as_their_rounding_allows(expected: torch.Tensor):
    weights = random_weights(MIXED, torch.bfloat16)
    exact = reference_logits(MIXED, weights, tokens(NUM_TOKENS), torch.float64)
    error = (run("bfloat16", [NUM_TOKENS]) - exact).abs()
    assert error.mean() < 0.02 * exact.std()
    error = (run("float32", [NUM_TOKENS], cache_dtype="bfloat16") - expected).abs()
    assert 0 < error.mean() < 0.01 * expected.std()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("chunks", "companions"),
    [
        ([1] * NUM_TOKENS, 0),
        ([10] * 30, 0),
        ([100, *[1] * 50, 3, 9, 33, 2, 1, 1, 101], 0),
        ([20] * 15, 3),
        ([299, 1], 5),
    ],
)
def test_not_a_bit_depends_on_chunks_or_companions(dtype: str, chunks: list[int], companions: int):
    assert torch.equal(run(dtype, chunks, companions), run(dtype, [NUM_TOKENS]))


@pytest.mark.threads
@pytest.mark.parametrize("dtype", DTYPES)
def test_not_a_bit_depends_on_the_number_of_threads(dtype: str):
    alone = run(dtype, [NUM_TOKENS])
    assert torch.equal(run(dtype, [155, *[1] * 10, 135], 2, num_threads=2), alone)


CODED = decoder_spec([BY_LATENTS, BY_LATENTS, GROUPED, WIDE])
"""Layers of plain attention beside them, which keep the weights' dtype here."""


def run_coded(form: str, chunks: list[int], **options: Any) -> torch.Tensor:
    """Logits of `CODED`, whose first and last layers are stored in a form, the second plain."""
    dtype = options.pop("dtype", "float32")
    return cpu_executors.run(
        CODED, dtype, chunks, cache_dtype=[form, dtype, dtype, form], **options
    )


class Noise:
    """In place of a codec: random errors of a latent, of a size relative to its own."""

    def __init__(self, size: float) -> None:
        self.size, self.rng = size, np.random.default_rng(1)

    def recall(self, vectors: Array, rank: int) -> Array:
        latents = vectors[:, :rank]
        size = self.size * np.sqrt(np.square(latents).mean(-1, keepdims=True))
        noisy = latents + size * self.rng.normal(size=latents.shape)
        return np.concatenate([noisy, vectors[:, rank:]], axis=-1).astype(np.float32)


@pytest.mark.parametrize(("form", "step"), [("fp8_per_group", 2**-3), ("int8_per_group", 3 / 127)])
def test_attention_reads_what_was_stored(form: str, step: float):
    """Much nearer to the plain truth about the codec than this is to a cache without one, which is
    about as far as random errors of the codec's size take it, which are another draw.

    An error within a step is step / √12 where all are as likely. Steps of e4m3 are at most 2⁻³ of a
    number; those of whole numbers 1/127 of the largest of a group, some three deviations."""
    weights, text, codec = random_weights(CODED), tokens(NUM_TOKENS), LATENT_CODECS[form]
    codecs = [codec, None, None, codec]
    coded = reference_logits(CODED, weights, text, codec=codecs)
    whole = reference_logits(CODED, weights, text)
    noise = [each and Noise(step / 12**0.5) for each in codecs]
    noisy = reference_logits(CODED, weights, text, codec=noise)
    logits = run_coded(form, [NUM_TOKENS])
    error, cost, allowed = (
        (one - other).square().mean().sqrt()
        for one, other in ((logits, coded), (coded, whole), (noisy, whole))
    )
    assert error < 0.1 * cost
    assert 0.2 * allowed < cost < 1.5 * allowed


@pytest.mark.threads
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("form", LATENT_CODECS)
def test_not_a_bit_of_codes_depends_on_chunks_companions_or_threads(form: str, dtype: str):
    alone = run_coded(form, [NUM_TOKENS], dtype=dtype)
    for chunks, companions in (([7] * 42 + [6], 0), ([108, *[1] * 8, 3, 181], 3)):
        num_threads = 2 if companions else 1  # two wait for each other: once for each case
        parts = run_coded(form, chunks, dtype=dtype, companions=companions, num_threads=num_threads)
        assert torch.equal(parts, alone)


def test_sequences_behind_one_prefix_are_as_each_alone():
    """They take splits together, whose latents are turned into values once for all."""
    executor, pager = make(MIXED)
    shared = tokens(272, 9)
    first = pager.sequence(shared + tokens(8, 1))
    executor.forward(pager.batch([(first, 272)]))
    others = [pager.sequence(shared + tokens(8, seed)) for seed in (2, 3)]
    for other in others:
        other.block_ids[:17] = first.block_ids[:17]
        other.num_computed = 272
    together = [
        executor.forward(pager.batch([(each, 1) for each in (first, *others)])).clone()
        for _ in range(8)
    ]
    for number, seed in enumerate((1, 2, 3)):
        executor, pager = make(MIXED)
        alone = pager.sequence(shared + tokens(8, seed))
        executor.forward(pager.batch([(alone, 272)]))
        for step in together:
            assert torch.equal(executor.forward(pager.batch([(alone, 1)]))[0], step[number])


def test_a_token_leaves_one_vector():
    for form, token_bytes in (("bfloat16", 1152), ("fp8_per_group", 656), ("int8_per_group", 656)):
        layer = LatentLayerSpec(512, 64, form)
        spec = CacheSpec((layer,) * 3, BLOCK_SIZE)
        storage = CPUStorage(spec, 7)
        assert spec.bytes_per_token == 3 * token_bytes
        assert storage.size_bytes == sum(each.content.nbytes for each in storage.layers)
        assert storage.size_bytes == 7 * BLOCK_SIZE * 3 * token_bytes


def test_blocks_go_out_and_come_in():
    executor, pager = make(decoder_spec([BY_LATENTS]))
    sequence = pager.sequence(tokens(40))
    executor.forward(pager.batch([(sequence, 32)]))
    storage = executor.storage
    held, spare = (
        sequence.block_ids[1],
        next(number for number in range(storage.num_blocks) if number not in sequence.block_ids),
    )
    storage.import_block(spare, storage.export_block(held))
    expected = executor.forward(pager.batch([(sequence, 1)])).clone()
    sequence.block_ids[1] = spare
    sequence.num_computed = 32
    assert torch.equal(executor.forward(pager.batch([(sequence, 1)])), expected)


def test_what_is_not_covered_is_refused_by_name():
    spec = decoder_spec([BY_LATENTS])
    for form in ("fp8_e5m2", "int8_per_token_head", "turboquant_k8v4", "int4"):
        with pytest.raises(
            InvalidOptionError, match=r"latents are stored as auto, .*int8_per_group"
        ):
            spec.cache_spec(16, form)
    with pytest.raises(InvalidOptionError, match="latents"):
        CPUStorage(CacheSpec((LatentLayerSpec(512, 64, "fp8_e4m3"),), 16), 4)
    with pytest.raises(InvalidOptionError, match=r"block_size.*even"):
        CPUStorage(spec.cache_spec(5, "bfloat16"), 4)
    odd = LatentAttentionSpec(2, None, 32, 7, 8, 16, 0.2, rope_spec(8))
    with pytest.raises(UnsupportedModelError, match="qk_nope_head_dim"):
        require_even_rows(decoder_spec([odd]), "bfloat16")
