"""Layers that see windows, and sinks: against a plain reference, and the same bits in any way."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from cpu_executors import panel_weights
from decoders import Pager, decoder_spec, let_go, random_weights, rope_spec

from pagoda.cache import AttentionWindow
from pagoda.cache.window import FULL_ATTENTION
from pagoda.codecs import LATENT_CODECS, codec_of
from pagoda.execution.cpu.executor import CPUExecutor
from pagoda.execution.reference import reference_logits
from pagoda.models.decoder import AttentionSpec, DecoderSpec, LatentAttentionSpec, QKNorm
from pagoda.storage.cpu_storage import CPUStorage

FULL = AttentionSpec(6, 2, 32, 32**-0.5, rope_spec(32), qk_norm=QKNorm.HEAD, qkv_bias=True)
BENT = dataclasses.replace(FULL, logit_cap=2.0, sink_logits=True)
LATENT = LatentAttentionSpec(
    6, q_rank=20, rank=32, nope_dim=24, rope_dim=8, value_dim=16, scale=0.2, rope=rope_spec(8)
)
BLOCK_SIZE = 8
NUM_TOKENS = 600
"""More than two splits of a context."""


def windowed(*windows: int | None) -> DecoderSpec:
    """A layer for each: the first tokens' layers see other ones than the last."""
    return decoder_spec([dataclasses.replace(FULL, sliding_window=window) for window in windows])


CASES = {
    "windows": (windowed(20, None, 300), FULL_ATTENTION),
    "one window": (windowed(40, 40), FULL_ATTENTION),
    "streaming": (windowed(None, None), AttentionWindow(36, 4)),
    "streaming, as far as it goes": (windowed(None, None), AttentionWindow(590, 9)),
    "many sinks": (windowed(None), AttentionWindow(300, 280)),
    "streaming beside windows": (windowed(None, 16), AttentionWindow(48, 3)),
    "the last ones alone": (windowed(None, None), AttentionWindow(50)),
    "streaming, capped and with sink logits": (decoder_spec([BENT]), AttentionWindow(300, 20)),
    "streaming latents": (decoder_spec([LATENT, LATENT]), AttentionWindow(300, 20)),
    "streaming latents beside windows": (
        decoder_spec([LATENT, dataclasses.replace(FULL, sliding_window=16)]),
        AttentionWindow(36, 4),
    ),
}


def tokens() -> list[int]:
    return np.random.default_rng(0).integers(0, 97, NUM_TOKENS).tolist()


def run(
    spec: DecoderSpec,
    retention: AttentionWindow,
    chunks: list[int],
    *,
    companions: int = 0,
    form: str = "float32",
    block_size: int = BLOCK_SIZE,
    num_threads: int = 1,
) -> torch.Tensor:
    """Logits of one sequence in chunks; blocks that are behind its windows hold NaN, and are holes.

    companions: sequences that take a token whenever this one takes a chunk.
    """
    cache = spec.cache_spec(block_size, form, retention=retention)
    num_blocks = (companions + 1) * len(cache.groups) * -(-NUM_TOKENS // block_size)
    storage = CPUStorage(cache, num_blocks)
    executor = CPUExecutor(spec, panel_weights(spec), storage, NUM_TOKENS, num_threads)
    pager = Pager(block_size, num_blocks, cache.windows)
    sequence = pager.sequence(tokens())
    others = [pager.sequence(tokens()) for _ in range(companions)]
    found = []
    for size in chunks:
        steps = [*((other, 1) for other in others), (sequence, size)]
        batch = let_go(pager.batch(steps), cache.windows, storage)
        found.append(executor.forward(batch)[len(others) :].clone())
    return torch.cat(found)


@pytest.mark.parametrize("case", CASES)
def test_rows_see_what_the_reference_sees(case: str) -> None:
    spec, retention = CASES[case]
    truth = reference_logits(
        spec, random_weights(spec), tokens(), torch.float64, retention=retention
    )
    found = run(spec, retention, [NUM_TOKENS])
    assert (found - truth).abs().max() < 1e-3
    assert (found.argmax(1) == truth.argmax(1)).all()


@pytest.mark.parametrize(
    "form",
    ["int8_per_token_head", "int4_per_token_head",
     "levels5-float16-norm-hadamard/levels6-float32-offset", *LATENT_CODECS],
)  # fmt: skip
def test_sinks_of_codes_are_met_in_the_basis_of_codes(form: str) -> None:
    wide = dataclasses.replace(BENT, head_dim=64, rope=rope_spec(64))
    spec = decoder_spec([LATENT if form in LATENT_CODECS else wide])
    retention, codec = AttentionWindow(36, 4), LATENT_CODECS.get(form) or codec_of(form)
    assert codec is not None
    truth = reference_logits(
        spec, random_weights(spec), tokens(), torch.float64, codec=codec, retention=retention
    )
    coded = {"form": form, "block_size": 16}  # as of other tests, whose kernels these are
    found = run(spec, retention, [NUM_TOKENS], **coded)
    assert (found - truth).abs().max() < 0.02 * truth.abs().max()
    assert torch.equal(run(spec, retention, [560] + [1] * 40, **coded), found)


@pytest.mark.parametrize("case", CASES)
def test_not_a_bit_depends_on_chunks_companions_or_threads(case: str) -> None:
    spec, retention = CASES[case]
    whole = run(spec, retention, [NUM_TOKENS])
    assert whole.isfinite().all()
    for chunks in ([400, *[1] * 20, 100, *[3] * 20, 20], [1] * 30 + [570]):
        assert torch.equal(run(spec, retention, chunks), whole)
    chunks = [300, *[2] * 12, 276]
    assert torch.equal(run(spec, retention, chunks, companions=2, num_threads=2), whole)


def test_without_sinks_a_row_far_on_sees_other_tokens() -> None:
    spec = windowed(None, None)
    with_sinks = run(spec, AttentionWindow(36, 4), [NUM_TOKENS])
    without = run(spec, AttentionWindow(40), [NUM_TOKENS])
    whole = run(spec, FULL_ATTENTION, [NUM_TOKENS])
    assert torch.allclose(with_sinks[:40], whole[:40], atol=1e-5)
    assert (with_sinks[-1] - without[-1]).abs().max() > 1e-2


def test_a_layer_says_its_window_to_the_cache() -> None:
    spec = windowed(20, None, 300)
    assert spec.cache_spec(8, "float32").windows == (
        AttentionWindow(20),
        FULL_ATTENTION,
        AttentionWindow(300),
    )
    assert AttentionSpec.cached_as(spec.layers[0].attention, "float32").window.window == 20
