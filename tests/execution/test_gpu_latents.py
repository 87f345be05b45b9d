"""The executor for GPUs runs layers that keep latents: as the reference, which makes every key."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from decoders import Pager, decoder_spec, on_device, random_weights, rope_spec, run, tokens
from kernel_launches import Operations, launcher, note_launches

from pagoda.codecs import LATENT_CODECS
from pagoda.errors import InvalidOptionError, UnsupportedModelError
from pagoda.execution.gpu.executor import GPUExecutor
from pagoda.execution.reference import reference_logits
from pagoda.models.decoder import (
    AttentionSpec,
    DecoderSpec,
    ExpertsSpec,
    LatentAttentionSpec,
    MLPSpec,
)
from pagoda.sizing.gpu_step import layer_shape
from pagoda.storage.gpu_storage import GPUStorage
from triton_device import DEVICE

pytestmark = pytest.mark.filterwarnings("ignore:overflow")  # exp of the interpreter

BLOCK_SIZE, NUM_BLOCKS, NUM_TOKENS = 8, 40, 29
BY_LATENTS = LatentAttentionSpec(
    6, q_rank=20, rank=32, nope_dim=24, rope_dim=8, value_dim=16, scale=0.2, rope=rope_spec(8)
)
MANY_HEADS = LatentAttentionSpec(
    40, None, rank=48, nope_dim=10, rope_dim=4, value_dim=34, scale=0.3, rope=rope_spec(4),
    down_bias=True, output_bias=True,
)  # fmt: skip
GROUPED = AttentionSpec(6, 2, 32, 32**-0.5, rope_spec(32))
EXPERTS = ExpertsSpec(
    8, 3, 24, scoring="sigmoid", scale=2.5, correction_bias=True, num_groups=4, num_used_groups=2,
    group_top=2, shared=MLPSpec(48),
)  # fmt: skip
MIXED = decoder_spec([BY_LATENTS, GROUPED, MANY_HEADS])
MIXED = dataclasses.replace(
    MIXED, layers=(*MIXED.layers[:2], dataclasses.replace(MIXED.layers[2], mlp=EXPERTS))
)
"""A dense layer, one of keys and values beside it, and one of experts, as DeepSeek-V3 has them."""


def make(
    spec: DecoderSpec = MIXED,
    dtype: torch.dtype = torch.float32,
    formats: str | list[str] | None = None,
    graph_sizes: tuple[int, ...] = (),
    **options: Any,
) -> tuple[GPUExecutor, Pager]:
    cache = spec.cache_spec(BLOCK_SIZE, formats or str(dtype).removeprefix("torch."))
    storage = GPUStorage(cache, NUM_BLOCKS, DEVICE)
    weights = on_device(random_weights(spec, dtype), DEVICE)
    executor = GPUExecutor(spec, weights, storage, 200, graph_sizes, **options)
    return executor, Pager(BLOCK_SIZE, NUM_BLOCKS, cache.windows)


@pytest.fixture(scope="module")
def truth() -> torch.Tensor:
    return reference_logits(MIXED, random_weights(MIXED), tokens(NUM_TOKENS), torch.float64)


@pytest.mark.parametrize(
    ("chunks", "graph_sizes", "companions"),
    [([NUM_TOKENS], (), 0), ([13, 1, 13, 2], (1, 4), 1)],
    ids=["whole", "in chunks, padded where each has a token"],
)
def test_logits_are_those_of_the_reference(
    truth: torch.Tensor, chunks: list[int], graph_sizes: tuple[int, ...], companions: int
) -> None:
    others = [tokens(12, seed) for seed in range(1, companions + 1)]
    logits = run(*make(graph_sizes=graph_sizes), tokens(NUM_TOKENS), chunks, others)
    assert (logits - truth).abs().max() < 1e-4
    assert torch.equal(logits.argmax(-1), truth.argmax(-1))


def test_16_bits_are_as_near_as_their_rounding_allows() -> None:
    spec = decoder_spec([BY_LATENTS, MANY_HEADS])
    exact = reference_logits(spec, random_weights(spec, torch.float16), tokens(NUM_TOKENS))
    logits = run(*make(spec, torch.float16), tokens(NUM_TOKENS), [NUM_TOKENS])
    error = (logits - exact).square().mean().sqrt()
    assert error < 0.005 * exact.square().mean().sqrt()


@pytest.mark.parametrize("form", LATENT_CODECS)
def test_attention_reads_what_was_stored(form: str) -> None:
    """A prompt's own tokens too. One layer, so that no code of a second is on another's edge."""
    spec = decoder_spec([dataclasses.replace(MANY_HEADS, rank=144)])  # a last group of 16 numbers
    weights, codec = random_weights(spec), LATENT_CODECS[form]
    coded, whole = (
        reference_logits(spec, weights, tokens(NUM_TOKENS), codec=each) for each in (codec, None)
    )
    logits = run(*make(spec, formats=form), tokens(NUM_TOKENS), [13, 1, 15])
    assert (logits - coded).abs().max() < 1e-4
    assert (coded - whole).abs().mean() > 0.005


def test_latents_may_be_coded_in_some_layers_and_what_is_wider_lies_beside() -> None:
    form = "int8_per_group"
    spec = decoder_spec([dataclasses.replace(BY_LATENTS, rank=144), BY_LATENTS])
    formats = [form, "float32"]
    executor, pager = make(spec, formats=formats)
    codecs = [LATENT_CODECS[form], None]
    coded = reference_logits(spec, random_weights(spec), tokens(9), codec=codecs)
    assert (run(executor, pager, tokens(9), [8, 1]) - coded).abs().max() < 1e-4
    bytes_of_token = (144 + 2 * 4 + 8 * 2) + (32 + 8) * 4
    assert executor.storage.size_bytes == NUM_BLOCKS * BLOCK_SIZE * bytes_of_token


def test_not_a_bit_depends_on_whether_rows_beside_are_others_or_pad() -> None:
    spec = decoder_spec([BY_LATENTS])
    outputs = []
    for count in (4, 2):
        executor, pager = make(spec, graph_sizes=(4,))
        sequences = [pager.sequence(tokens(9 + seed, seed)) for seed in range(4)]
        for number, sequence in enumerate(sequences[:count]):
            executor.forward(pager.batch([(sequence, 5 + number % 3)]))
        batches = [pager.batch([(s, 1) for s in sequences[:count]]) for _ in range(2)]
        logits = [executor.forward(batch)[:2].cpu().clone() for batch in batches]
        own = [block for s in sequences[:2] for block in s.block_ids]
        outputs.append(logits + [torch.from_numpy(executor.storage.export_block(b)) for b in own])
    for among_others, padded in zip(*outputs, strict=True):
        assert torch.equal(among_others, padded)


def test_only_blocks_of_the_batch_are_written_and_blocks_go_out_and_come_in() -> None:
    executor, pager = make(decoder_spec([BY_LATENTS]))
    storage = executor.storage
    before = [storage.export_block(block) for block in range(NUM_BLOCKS)]
    sequence = pager.sequence(tokens(18))
    for count in (17, 1):
        expected = executor.forward(pager.batch([(sequence, count)])).clone()
    changed = [
        block
        for block in range(NUM_BLOCKS)
        if not np.array_equal(before[block], storage.export_block(block))
    ]
    assert changed == sorted(sequence.block_ids)
    spare = pager.free.pop()
    storage.import_block(spare, storage.export_block(sequence.block_ids[1]))
    sequence.block_ids[1], sequence.num_computed = spare, 17
    assert torch.equal(executor.forward(pager.batch([(sequence, 1)])), expected)


def test_warm_up_launches_every_kernel_that_steps_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    launched = note_launches(monkeypatch)
    small = LatentAttentionSpec(1, 16, 16, 16, 4, 16, 0.2, rope_spec(4))
    spec = decoder_spec([small])
    storage = GPUStorage(spec.cache_spec(32, "float32"), 12, DEVICE)
    weights = on_device(random_weights(spec), DEVICE)
    executor, pager = GPUExecutor(spec, weights, storage, 300), Pager(32, 12)
    executor.warm_up()
    warmed_up = frozenset(launched)
    launched.clear()
    sequence = pager.sequence(tokens(262))
    executor.forward(pager.batch([(sequence, 5)]))
    sequence.num_computed = 261  # as if all before had been: what is launched follows from it
    executor.forward(pager.batch([(sequence, 1)]))
    assert {"latent_splits", "merge_splits", "latent_tiles", "latent_rows_kernel"} <= launched
    assert "head_product_kernel" in launched
    assert launched <= warmed_up


def test_launches_take_no_memory_and_wait_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    noted, launches = Operations(), []

    def keep(given: Callable[[], None]) -> Callable[[], None]:
        launches.append(given)
        return given

    spec = decoder_spec([BY_LATENTS, MANY_HEADS])
    make(spec, graph_sizes=(3,), capture=keep)[0].warm_up()
    monkeypatch.setattr(*launcher(), lambda *_, **__: None)
    with noted:
        launches[0]()
    views = {
        f"aten.{name}"
        for name in ("slice.Tensor", "view.dtype", "view.default", "t.default", "transpose.int")
    }
    assert noted.names <= {*views, "aten.detach.default", "aten.mm.out", "aten.addmm.out"}


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"rank": 1024}, "kv_lora_rank"),
        ({"rank": 8}, "kv_lora_rank"),
        ({"rope_dim": 256, "rope": rope_spec(256)}, "qk_rope_head_dim"),
        ({"num_heads": 1000}, "num_attention_heads"),
    ],
)
def test_latents_without_a_kernel_are_refused_by_name(change: dict[str, Any], field: str) -> None:
    with pytest.raises(UnsupportedModelError) as refusal:
        layer_shape(decoder_spec([dataclasses.replace(BY_LATENTS, **change)]).layers[0])
    assert refusal.value.field == field


def test_a_cache_holds_latents_of_its_own_forms_alone() -> None:
    spec = decoder_spec([BY_LATENTS]).cache_spec(16, "float32")
    layers = tuple(dataclasses.replace(layer, dtype="fp8_e4m3") for layer in spec.layers)
    with pytest.raises(InvalidOptionError, match="a cache of latents holds one of"):
        GPUStorage(dataclasses.replace(spec, layers=layers), 4, DEVICE)
