"""What all executors promise alike, held against the plain reference."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest
import torch
from decoders import (
    Executor,
    Pager,
    decoder_spec,
    on_device,
    placed,
    random_weights,
    rope_spec,
    run,
    tokens,
    varied_spec,
)

from pagoda.execution.batch import GroupPages
from pagoda.execution.cpu.executor import CPUExecutor
from pagoda.execution.cpu.panel_weights import PanelWeights
from pagoda.execution.gpu.executor import GPUExecutor
from pagoda.execution.reference import reference_logits
from pagoda.models.decoder import (
    PARALLEL_NORM,
    PARALLEL_NORMS,
    POST_NORM,
    PRE_NORM,
    SANDWICH_NORM,
    Activation,
    AttentionSpec,
    DecoderSpec,
    Learned,
    MLPSpec,
    NormSpec,
    QKNorm,
    RopeSpec,
)
from pagoda.storage.cpu_storage import CPUStorage
from pagoda.storage.gpu_storage import GPUStorage
from triton_device import DEVICE

BLOCK_SIZE, NUM_BLOCKS = 8, 40
NUM_TOKENS, MAX_MODEL_LEN = 41, 64
FULL = AttentionSpec(6, 2, 32, 32**-0.5, rope_spec(32), qk_norm=QKNorm.HEAD, qkv_bias=True)
WINDOW = AttentionSpec(
    6, 2, 32, 0.3, None, sliding_window=7, output_bias=True, sink_logits=True
)  # fmt: skip
PARTIAL = AttentionSpec(
    4, 4, 16, 0.2, RopeSpec((1.0, 0.1, 0.01), 1.2), sliding_window=30, logit_cap=2.0
)  # fmt: skip
MIXED = decoder_spec([FULL, WINDOW, PARTIAL])
ONE_LAYER = decoder_spec([FULL])
VARIED = varied_spec(FULL, WINDOW, PARTIAL)
KINDS_OF_DECODERS = {
    "sandwich": dataclasses.replace(
        placed(
            decoder_spec([FULL, dataclasses.replace(FULL, logit_cap=5.0)]),
            *[SANDWICH_NORM] * 2, mlp=MLPSpec(80, Activation.GELU_TANH),
        ),
        norm=NormSpec(1e-5, weight_offset=1.0), embedding_scale=48**0.5, logit_cap=2.0,
    ),
    "post": placed(
        decoder_spec([dataclasses.replace(FULL, qk_norm=QKNorm.ROW)] * 2), *[POST_NORM] * 2
    ),
    "parallel": dataclasses.replace(
        placed(decoder_spec([WINDOW] * 2), *[PARALLEL_NORM] * 2),
        norm=NormSpec(1e-5, is_centred=True), logit_scale=0.0625,
    ),
    "shifted": dataclasses.replace(
        placed(decoder_spec([FULL] * 2), PRE_NORM, POST_NORM),
        norm=NormSpec(1e-5, is_centred=True, learned=Learned.WEIGHT_AND_BIAS),
    ),
    "without a gate": dataclasses.replace(
        placed(
            decoder_spec([FULL] * 2), PARALLEL_NORMS, PRE_NORM,
            mlp=MLPSpec(77, Activation.GELU, bias=True, is_gated=False),
        ),
        norm=NormSpec(1e-5, is_centred=True, learned=Learned.WEIGHT_AND_BIAS), logit_bias=True,
        logit_scale=0.5,
    ),
    "scaled": dataclasses.replace(
        placed(decoder_spec([FULL] * 2), *[PRE_NORM] * 2, residual_scale=0.22),
        embedding_scale=12.0, logit_scale=0.125,
    ),
}  # fmt: skip
"""As families have them: Gemma 2 and 3; OLMo 2; Cohere 2; StableLM; GPT-NeoX; Granite."""
DTYPES = {
    "float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16,
}  # fmt: skip
ERROR = 1e-4
"""Error of a logit in float32, against the reference in float64."""


def on_cpu(spec: DecoderSpec, dtype: str) -> Executor:
    cache_spec = spec.cache_spec(BLOCK_SIZE, dtype)
    storage = CPUStorage(cache_spec, NUM_BLOCKS * len(cache_spec.groups))
    weights = PanelWeights.take_over(random_weights(spec, DTYPES[dtype]))
    return CPUExecutor(spec, weights, storage, MAX_MODEL_LEN, num_threads=1)


def on_gpu(spec: DecoderSpec, dtype: str, graph_sizes: tuple[int, ...] = ()) -> Executor:
    cache_spec = spec.cache_spec(BLOCK_SIZE, dtype)
    storage = GPUStorage(cache_spec, NUM_BLOCKS * len(cache_spec.groups), DEVICE)
    weights = on_device(random_weights(spec, DTYPES[dtype]), DEVICE)
    return GPUExecutor(spec, weights, storage, MAX_MODEL_LEN, graph_sizes)


def on_padding_gpu(spec: DecoderSpec, dtype: str) -> Executor:
    """Batches of one token a sequence are padded, as CUDA graphs need it."""
    return on_gpu(spec, dtype, (1, 3))  # of two sequences too


@dataclass(frozen=True)
class Kind:
    """A kind of executor, and what may be asked of it."""

    new: Callable[[DecoderSpec, str], Executor]
    half: str = "float16"
    """A dtype of 16 bits that it computes in."""
    half_error: float = 0.005
    """Error of a logit then, as a part of what logits are like."""
    row_error: float = 1e-5
    """How much a row may depend on which others are asked for."""
    few: DecoderSpec = ONE_LAYER
    """For promises that hold whatever the layers: the interpreter takes a second for each."""

    def make(self, spec: DecoderSpec = MIXED, dtype: str = "float32") -> tuple[Executor, Pager]:
        executor = self.new(spec, dtype)
        storage = executor.storage
        return executor, Pager(BLOCK_SIZE, storage.num_blocks, storage.spec.windows)


KINDS = {
    "cpu": Kind(on_cpu, "bfloat16", half_error=0.02, row_error=0, few=MIXED),
    "gpu": Kind(on_gpu),
    "padding-gpu": Kind(on_padding_gpu),
}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    return KINDS[request.param]


@cache
def expected(spec: DecoderSpec) -> torch.Tensor:
    return reference_logits(spec, random_weights(spec), tokens(NUM_TOKENS), torch.float64)


@pytest.mark.parametrize(
    ("name", "spec", "chunks", "companions"),
    [
        *[
            ("cpu", MIXED, *case)
            for case in (
                ([NUM_TOKENS], 0), ([1] * NUM_TOKENS, 0), ([13, 1, 1, 20, 2, 1, 3], 0),
                ([20, 10, *[1] * 11], 3), ([*[1] * 6, 30, *[1] * 5], 2),
            )
        ],
        # The interpreter is slow: whole and in chunks as it is, one by one where that is padded.
        ("gpu", MIXED, [NUM_TOKENS], 0),
        ("gpu", MIXED, [20, 1, 2, 16, 1, 1], 2),
        ("padding-gpu", MIXED, [37, 1, 1, 1, 1], 0),
        ("padding-gpu", MIXED, [1, 1, 36, 1, 1, 1], 1),
        ("cpu", VARIED, [20, 10, *[1] * 11], 3),
        ("padding-gpu", VARIED, [18, 1, 1, 20, 1], 1),
    ],
)  # fmt: skip
def test_logits_are_those_of_the_reference(
    name: str, spec: DecoderSpec, chunks: list[int], companions: int
) -> None:
    others = [tokens(NUM_TOKENS, seed) for seed in range(1, companions + 1)]
    logits, truth = run(*KINDS[name].make(spec), tokens(NUM_TOKENS), chunks, others), expected(spec)
    assert logits.dtype == torch.float32
    assert (logits - truth).abs().max() < ERROR
    assert torch.equal(logits.argmax(-1), truth.argmax(-1))


@pytest.mark.parametrize("name", ["cpu", "gpu"])
@pytest.mark.parametrize("decoder", KINDS_OF_DECODERS)
def test_each_kind_of_decoder_is_the_references(name: str, decoder: str) -> None:
    spec = KINDS_OF_DECODERS[decoder]
    logits = run(*KINDS[name].make(spec), tokens(9), [7, 1, 1])
    truth = reference_logits(spec, random_weights(spec), tokens(9))
    assert (logits - truth).abs().max() < ERROR
    assert truth.std() > 0.05, "logits are no zeros"


@pytest.mark.parametrize("name", ["cpu", "gpu"])
def test_16_bits_are_as_near_as_their_rounding_allows(name: str) -> None:
    kind = KINDS[name]
    weights = random_weights(MIXED, DTYPES[kind.half])
    exact = reference_logits(MIXED, weights, tokens(NUM_TOKENS))
    logits = run(*kind.make(dtype=kind.half), tokens(NUM_TOKENS), [NUM_TOKENS])
    error = (logits - exact).square().mean().sqrt()
    assert error < kind.half_error * exact.square().mean().sqrt()


def test_only_the_rows_asked_for_come_back_and_they_are_the_same(kind: Kind) -> None:
    executor, pager = kind.make(ONE_LAYER)
    sequences = [pager.sequence(tokens(9, seed)) for seed in range(3)]
    prefill = pager.batch([(s, 8) for s in sequences])
    decode = pager.batch([(s, 1) for s in sequences])
    for batch, choices in ((prefill, ([7, 15],)), (decode, ([0, 2], []))):
        everything = executor.forward(batch).clone()
        for rows in choices:
            some = dataclasses.replace(batch, logit_rows=np.array(rows, np.int64))
            logits = executor.forward(some)
            assert logits.shape == (len(rows), MIXED.vocab_size)
            assert torch.allclose(logits, everything[rows], rtol=0, atol=kind.row_error)


@pytest.mark.parametrize(
    ("name", "count"), [("cpu", 4), ("cpu", 1), ("gpu", 4), ("padding-gpu", 1)]
)
def test_copies_come_before_the_step_and_leave_the_source_alone(name: str, count: int) -> None:
    executor, pager = KINDS[name].make()
    parent = pager.sequence(tokens(23))
    executor.forward(pager.batch([(parent, 19)]))
    own = [pager.free.pop() for _ in parent.tables]
    first, *more = ([*table[:2], block] for table, block in zip(parent.tables, own, strict=True))
    child = dataclasses.replace(parent, block_ids=first, more_block_ids=more)
    child.token_ids = [*parent.token_ids[:19], *tokens(count, seed=5)]
    sources = [table[2] for table in parent.tables]
    kept = [executor.storage.export_block(source) for source in sources]
    batch = dataclasses.replace(
        pager.batch([(child, count)]),
        copy_sources=np.array(sources),
        copy_targets=np.array(own),
    )
    logits = executor.forward(batch).cpu()
    truth = reference_logits(MIXED, random_weights(MIXED), child.token_ids)
    assert (logits - truth[19:]).abs().max() < ERROR
    for source, before in zip(sources, kept, strict=True):
        assert np.array_equal(before, executor.storage.export_block(source))


def test_a_step_of_nothing_copies_and_returns_no_row(kind: Kind) -> None:
    executor, pager = kind.make(kind.few)
    sequence = pager.sequence(tokens(8))
    executor.forward(pager.batch([(sequence, 8)]))
    source, target = sequence.block_ids[0], pager.free.pop()
    nothing = dataclasses.replace(
        pager.batch([(sequence, 0)]),
        query_starts=np.zeros(1, np.int32),
        context_lens=np.empty(0, np.int32),
        groups=tuple(
            GroupPages.seeing_all(np.empty((0, 0), np.int32), np.empty(0, np.int64))
            for _ in pager.windows
        ),
        copy_sources=np.array([source]),
        copy_targets=np.array([target]),
    )
    assert executor.forward(nothing).shape == (0, MIXED.vocab_size)
    storage = executor.storage
    assert np.array_equal(storage.export_block(source), storage.export_block(target))


def test_only_blocks_of_the_batch_are_written(kind: Kind) -> None:
    executor, pager = kind.make(kind.few)
    storage = executor.storage
    rng = np.random.default_rng(1)
    for block in range(pager.num_blocks):
        storage.import_block(block, rng.integers(0, 256, storage.spec.block_bytes, np.uint8))
    before = [storage.export_block(block) for block in range(pager.num_blocks)]
    first, second = pager.sequence(tokens(18)), pager.sequence(tokens(2))
    for count in (17, 1):
        executor.forward(pager.batch([(first, count), (second, 1)]))
    changed = [
        block
        for block in range(pager.num_blocks)
        if not np.array_equal(before[block], storage.export_block(block))
    ]
    assert changed == sorted(block for each in (first, second) for t in each.tables for block in t)


def test_warm_up_touches_no_block_and_later_steps_are_the_same(kind: Kind) -> None:
    executor, pager = kind.make(kind.few)
    storage = executor.storage
    for block in range(NUM_BLOCKS):
        storage.import_block(block, np.full(storage.spec.block_bytes, 65, np.uint8))
    executor.warm_up()
    for block in range(NUM_BLOCKS):
        assert (storage.export_block(block) == 65).all()
    logits = run(executor, pager, tokens(9), [7, 1, 1])
    truth = reference_logits(kind.few, random_weights(kind.few), tokens(9))
    assert (logits - truth).abs().max() < ERROR


@pytest.mark.parametrize("name", ["cpu", "gpu"])
def test_a_feed_forward_bias_is_added(name: str) -> None:
    spec = with_mlp(MLPSpec(80, bias=True))
    logits = run(*KINDS[name].make(spec), tokens(9), [9])
    truth = reference_logits(spec, random_weights(spec), tokens(9))
    assert (logits - truth).abs().max() < ERROR


def with_mlp(mlp: MLPSpec) -> DecoderSpec:
    """One layer with that feed-forward part."""
    spec = decoder_spec([FULL])
    return dataclasses.replace(spec, layers=(dataclasses.replace(spec.layers[0], mlp=mlp),))
