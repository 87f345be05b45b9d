"""Layers that see windows, and sinks, on a GPU: against a plain reference, with holes in tables
whose blocks hold NaN, in steps that are padded for CUDA graphs and in others."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from decoders import (
    Pager,
    decoder_spec,
    let_go,
    on_device,
    random_weights,
    rope_spec,
    tokens,
)

from pagoda.cache import AttentionWindow
from pagoda.cache.window import FULL_ATTENTION
from pagoda.codecs import codec_of
from pagoda.execution.batch import Batch
from pagoda.execution.gpu.executor import GPUExecutor
from pagoda.execution.reference import reference_logits
from pagoda.kernels.gpu import prefill_tiling
from pagoda.models.decoder import AttentionSpec, DecoderSpec, QKNorm
from pagoda.storage.gpu_storage import GPUStorage
from triton_device import DEVICE

ONE = AttentionSpec(1, 1, 32, 32**-0.5, rope_spec(32), qk_norm=QKNorm.HEAD, qkv_bias=True)
BENT = dataclasses.replace(ONE, logit_cap=2.0, sink_logits=True)
BLOCK_SIZE, NUM_TOKENS = 8, 72
CHUNKS = [50, 1, 1, 17, 1, 1, 1]


def windowed(*windows: int | None) -> DecoderSpec:
    return decoder_spec([dataclasses.replace(ONE, sliding_window=window) for window in windows])


CASES = {
    "windows": (windowed(20, None), FULL_ATTENTION),
    "two kinds, heads alike": (windowed(30, 17), FULL_ATTENTION),
    "many sinks": (windowed(None), AttentionWindow(18, 17)),
    "streaming beside windows": (windowed(None, 16), AttentionWindow(28, 3)),
    "the last ones alone": (windowed(None), AttentionWindow(30)),
    "streaming, capped and with sink logits": (decoder_spec([BENT]), AttentionWindow(28, 3)),
}


def run(
    spec: DecoderSpec,
    retention: AttentionWindow,
    chunks: Sequence[int],
    graph_sizes: tuple[int, ...] = (),
    *,
    asked: AttentionWindow = FULL_ATTENTION,
    formats: str | list[str] = "float32",
) -> torch.Tensor:
    """Logits of one sequence in chunks, beside another that takes a token with each; blocks that
    are behind windows hold NaN, and are holes. asked: what requests narrow it to."""
    cache = spec.cache_spec(BLOCK_SIZE, formats, retention=retention)
    num_blocks = 2 * len(cache.groups) * -(-NUM_TOKENS // BLOCK_SIZE)
    storage = GPUStorage(cache, num_blocks, DEVICE)
    executor = GPUExecutor(
        spec, on_device(random_weights(spec), DEVICE), storage, NUM_TOKENS, graph_sizes,
        max_num_tokens=NUM_TOKENS + 1, max_num_seqs=2, narrowed=not asked.is_full,
    )  # fmt: skip
    windows = tuple(window.narrowed(asked) for window in cache.windows)
    pager = Pager(BLOCK_SIZE, num_blocks, windows)
    other, sequence = pager.sequence(tokens(NUM_TOKENS)), pager.sequence(tokens(NUM_TOKENS))
    found = []
    for size in chunks:
        batch = let_go(pager.batch([(other, 1), (sequence, size)]), windows, storage)
        found.append(executor.forward(batch)[1:].cpu().clone())
    return torch.cat(found)


@pytest.mark.parametrize("case", CASES)
def test_rows_see_what_the_reference_sees(case: str) -> None:
    """A row alone goes to decode attention beside a chunk as it does, padded, beside others."""
    spec, retention = CASES[case]
    truth = reference_logits(
        spec, random_weights(spec), tokens(NUM_TOKENS), torch.float64, retention=retention
    )
    found = run(spec, retention, CHUNKS, (3,))
    assert (found - truth).abs().max() < 1e-3
    assert (found.argmax(1) == truth.argmax(1)).all()


def test_requests_see_what_they_ask_for() -> None:
    spec, asked = windowed(None, 40), AttentionWindow(24, 4)
    truth = reference_logits(
        spec, random_weights(spec), tokens(NUM_TOKENS), torch.float64, retention=asked
    )
    found = run(spec, FULL_ATTENTION, CHUNKS, (2,), asked=asked)
    assert (found - truth).abs().max() < 1e-3


def test_a_prompt_that_is_split_takes_its_sinks_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, count in (("SPLIT_FROM", 64), ("SPLIT_TOKENS", 64)):
        monkeypatch.setattr(prefill_tiling, name, count)
    spec, retention = windowed(None), AttentionWindow(58, 12)
    truth = reference_logits(
        spec, random_weights(spec), tokens(NUM_TOKENS), torch.float64, retention=retention
    )
    found = run(spec, retention, [60, 12])
    assert (found - truth).abs().max() < 1e-3


def test_sinks_of_codes_are_met_in_the_basis_of_codes() -> None:
    wide = dataclasses.replace(ONE, head_dim=64, rope=rope_spec(64))
    spec, retention = decoder_spec([wide]), AttentionWindow(24, 4)
    form = "int4_per_token_head"
    truth = reference_logits(
        spec, random_weights(spec), tokens(NUM_TOKENS), torch.float64, codec=codec_of(form),
        retention=retention,
    )  # fmt: skip
    found = run(spec, retention, CHUNKS, (2,), formats=form)
    # Where something is turned a few numbers may be another level.
    assert (found - truth).square().mean() < (0.01 * truth).square().mean()


def test_groups_of_different_formats_share_the_pool() -> None:
    """A place of a block is as wide as its widest layer: others leave a gap behind."""
    spec, names = windowed(20, None), ["int8_per_token_head", "float32"]
    wide = decoder_spec([ONE, dataclasses.replace(ONE, num_heads=3, num_kv_heads=3)])
    larger = windowed(None, 20).layers[1], wide.layers[1]
    for layers, formats in ((spec.layers, names), (larger, ["float32", "float32"])):
        own = dataclasses.replace(spec, layers=layers)
        truth = reference_logits(
            own, random_weights(own), tokens(NUM_TOKENS), torch.float64,
            codec=[codec_of(name) for name in formats],  # type: ignore[misc]
        )  # fmt: skip
        assert (run(own, FULL_ATTENTION, CHUNKS, (2,), formats=formats) - truth).abs().max() < 1e-3


def test_blocks_of_groups_are_copied_whole() -> None:
    spec = windowed(None, 20)
    cache = spec.cache_spec(BLOCK_SIZE, ["int8_per_token_head", "float32"])
    storage = GPUStorage(cache, 3, DEVICE)
    content = np.random.default_rng(0).integers(0, 256, cache.block_bytes, np.uint8)
    storage.import_block(1, content)
    storage.copy_blocks([1], [2])
    assert np.array_equal(storage.export_block(2), content)
    assert not storage.export_block(0).any()


def test_places_of_sinks_are_those_of_the_last_row_that_sees_nothing_let_go() -> None:
    pager = Pager(4, 40, (AttentionWindow(6, 2), FULL_ATTENTION))
    sequence = pager.sequence(range(20))
    batch: Batch = pager.batch([(sequence, 12)])
    assert batch.sink_positions(0).tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 7, 7, 7, 7]
    assert batch.sink_positions(1).tolist() == list(range(12))
