"""What the executor for GPUs promises beyond what all do: graphs, and memory that stays.

On a CPU by way of Triton's interpreter; on a GPU where there is one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from decoders import (
    Pager,
    decoder_spec,
    on_device,
    random_weights,
    rope_spec,
    tokens,
    varied_spec,
)
from kernel_launches import Operations, launcher, note_launches

from pagoda.errors import UnsupportedModelError
from pagoda.execution.batch import DrawnTokens
from pagoda.execution.gpu import grouped_attention
from pagoda.execution.gpu.executor import GPUExecutor
from pagoda.execution.reference import reference_logits
from pagoda.kernels.gpu import prefill_tiling as prefill_tilings
from pagoda.kernels.gpu.prefill_tiling import (
    SPLIT_FROM,
    AttentionKind,
    PrefillTiling,
    tile_prefill,
)
from pagoda.models.decoder import AttentionSpec, DecoderSpec, QKNorm, RopeSpec
from pagoda.storage.gpu_storage import GPUStorage
from triton_device import DEVICE, one_by_one

BLOCK_SIZE = 8
NUM_TOKENS = 41
MAX_MODEL_LEN = 64
FULL = AttentionSpec(6, 2, 32, 32**-0.5, rope_spec(32), qk_norm=QKNorm.HEAD, qkv_bias=True)
WINDOW = AttentionSpec(6, 2, 32, 0.3, None, sliding_window=7, output_bias=True)
PARTIAL = AttentionSpec(4, 4, 16, 0.2, RopeSpec((1.0, 0.1, 0.01), 1.2), sliding_window=30)
MIXED = varied_spec(FULL, WINDOW, PARTIAL)
DTYPES = {"float32": torch.float32, "float16": torch.float16}


def make(
    spec: DecoderSpec = MIXED,
    dtype: str = "float32",
    graph_sizes: tuple[int, ...] = (),
    num_blocks: int = 40,
    max_model_len: int = MAX_MODEL_LEN,
    **limits: int,
) -> tuple[GPUExecutor, Pager]:
    cache = spec.cache_spec(BLOCK_SIZE, dtype)
    num_blocks *= len(cache.groups)
    storage = GPUStorage(cache, num_blocks, DEVICE)
    weights = on_device(random_weights(spec, DTYPES[dtype]), DEVICE)
    executor = GPUExecutor(spec, weights, storage, max_model_len, graph_sizes, **limits)
    return executor, Pager(BLOCK_SIZE, num_blocks, cache.windows)


def test_a_short_chunk_after_a_long_context_is_split_and_like_the_reference(
    monkeypatch: pytest.MonkeyPatch,
):
    """What most of a prompt being found in the cache comes to, alone and beside others."""
    for name, tokens_of_a_split in (("SPLIT_FROM", 80), ("SPLIT_TOKENS", 64)):
        monkeypatch.setattr(prefill_tilings, name, tokens_of_a_split)  # few, for the interpreter
    attention = AttentionSpec(1, 1, 32, 32**-0.5, rope_spec(32))
    spec = decoder_spec([attention])
    count, length = 20, 140
    truth = reference_logits(spec, random_weights(spec), tokens(length), torch.float64)[-count:]
    executor, pager = make(spec, num_blocks=160, max_num_seqs=3, max_model_len=length)
    sequence = pager.sequence(tokens(length))
    executor.forward(pager.batch([(sequence, length - count)]))
    for num_others in (0, 2):
        sequence.num_computed = length - count
        others = [(pager.sequence(tokens(9, seed)), 1 + 4 * seed) for seed in range(num_others)]
        batch = pager.batch([*others, (sequence, count)])
        kind, wanted = AttentionKind(1, 1), np.array([num_others])
        tiling = tile_prefill(kind, batch.query_starts, batch.context_lens, wanted)
        assert len(tiling.merges) == 1
        assert (executor.forward(batch)[-count:].cpu() - truth).abs().max() < 1e-4


def test_not_a_bit_depends_on_whether_rows_beside_are_others_or_pad():
    outputs = []
    for count in (4, 2):
        executor, pager = make(graph_sizes=(4,))
        sequences = [pager.sequence(tokens(9 + seed, seed)) for seed in range(4)]
        for number, sequence in enumerate(sequences[:count]):
            executor.forward(pager.batch([(sequence, 5 + number % 3)]))
        batches = [pager.batch([(s, 1) for s in sequences[:count]]) for _ in range(2)]
        logits = [executor.forward(batch)[:2].cpu().clone() for batch in batches]
        own = [block for s in sequences[:2] for table in s.tables for block in table]
        logits += [torch.from_numpy(executor.storage.export_block(block)) for block in own]
        outputs.append(logits)
    for among_others, padded in zip(*outputs, strict=True):
        assert torch.equal(among_others, padded)


def test_not_a_bit_depends_on_the_order_of_programs():
    """No program of a launch needs what another one of it stores."""
    outputs = []
    for order in (one_by_one, nullcontext):
        executor, pager = make(num_blocks=20)
        sequences = [pager.sequence(tokens(26 + seed, seed)) for seed in range(2)]
        with order():
            for counts in ((13, 20), (5, 1), (1, 1)):
                batch = pager.batch(list(zip(sequences, counts, strict=True)))
                logits = executor.forward(batch).cpu().clone()
        own = [block for each in sequences for table in each.tables for block in table]
        outputs.append([logits, *map(torch.from_numpy, map(executor.storage.export_block, own))])
    assert all(map(torch.equal, *outputs))


@pytest.mark.parametrize("graph_sizes", [(), (1, 3)], ids=["as-it-is", "padded"])
def test_no_batch_within_the_limits_takes_new_memory_for_logits(graph_sizes: tuple[int, ...]):
    executor, pager = make(
        decoder_spec([FULL]), graph_sizes=graph_sizes,
        max_num_tokens=24, max_num_seqs=3, max_prompt_logit_rows=8,
    )  # fmt: skip
    places = set()
    for counts, prompt_rows in (
        ((1, 1, 1), 0), ((1, 1, 1), -1), ((1,), 0), ((22, 1, 1), 8), ((8, 8, 8), 8), ((24,), 8),
    ):  # fmt: skip
        sequences = [pager.sequence(tokens(count, seed)) for seed, count in enumerate(counts)]
        batch = pager.batch(list(zip(sequences, counts, strict=True)))
        batch = dataclasses.replace(
            batch, logit_rows=np.arange(sum(counts))[-len(counts) - prompt_rows :]
        )
        logits = executor.forward(batch)
        assert len(logits) == len(counts) + prompt_rows
        places.add(logits.untyped_storage().data_ptr())
        for sequence in sequences:
            pager.free += sequence.block_ids
    assert len(places) == 1


def test_warm_up_launches_every_kernel_that_steps_launch(monkeypatch: pytest.MonkeyPatch):
    launched = note_launches(monkeypatch)
    spec = decoder_spec([AttentionSpec(1, 1, 16, 0.25, rope_spec(16), qk_norm=QKNorm.HEAD)])
    spec = dataclasses.replace(spec, logit_scale=0.5)
    storage = GPUStorage(spec.cache_spec(32, "float32"), 12, DEVICE)
    weights = on_device(random_weights(spec), DEVICE)
    executor, pager = GPUExecutor(spec, weights, storage, 300), Pager(32, 12)
    executor.warm_up()
    warmed_up = frozenset(launched)
    launched.clear()
    sequence = pager.sequence(tokens(262))
    executor.forward(pager.batch([(sequence, 5)]))
    sequence.num_computed = 261  # as if all before had been: what is launched follows from it
    copy = {"copy_sources": np.array([0]), "copy_targets": np.array([pager.free.pop()])}
    executor.forward(dataclasses.replace(pager.batch([(sequence, 1)]), **copy))
    assert {"decode_splits", "merge_splits", "prefill_tile"} <= launched
    assert {"copy_kernel", "logits_kernel"} <= launched
    assert launched <= warmed_up


def test_warm_up_has_contexts_split_where_they_may_be_long(monkeypatch: pytest.MonkeyPatch):
    tilings: list[PrefillTiling[torch.Tensor]] = []
    monkeypatch.setattr(
        grouped_attention, "prefill_attention", lambda *arguments, **_: tilings.append(arguments[4])
    )
    spec = decoder_spec([FULL, dataclasses.replace(FULL, sliding_window=SPLIT_FROM)])
    executor, _ = make(spec, max_model_len=SPLIT_FROM)
    executor.warm_up()
    assert [len(tiling.merges) for tiling in tilings] == [1, 1]


class Recorder:
    """Stands in for CUDA graphs: remembers what was captured and counts replays."""

    def __init__(self) -> None:
        self.captured = 0
        self.replays: list[int] = []

    def __call__(self, launches: Callable[[], None]) -> Callable[[], None]:
        launches()
        number = self.captured
        self.captured += 1

        def replay() -> None:
            self.replays.append(number)
            launches()

        return replay


def captured(graph_sizes: tuple[int, ...]) -> tuple[GPUExecutor, Pager, Recorder]:
    spec, recorder = decoder_spec([FULL]), Recorder()
    storage = GPUStorage(spec.cache_spec(BLOCK_SIZE, "float32"), 40, DEVICE)
    weights = on_device(random_weights(spec), DEVICE)
    executor = GPUExecutor(spec, weights, storage, MAX_MODEL_LEN, graph_sizes, capture=recorder)
    executor.warm_up()
    return executor, Pager(BLOCK_SIZE, 40), recorder


def test_graphs_are_captured_from_the_largest_down_and_replayed_where_they_fit():
    executor, pager, recorder = captured((1, 4, 2))
    assert (executor.captured_sizes, recorder.captured) == ((1, 2, 4), 3)
    sequences = [pager.sequence(tokens(8, seed)) for seed in range(5)]
    executor.forward(pager.batch([(s, 4) for s in sequences]))
    assert recorder.replays == []  # more than one token each
    used = {1: 2, 2: 1, 3: 0, 4: 0}  # sequences to the graph's number: the largest was first
    for count, number in used.items():
        if count == 4:
            executor.forward(pager.batch([(sequences[4], 1)]))
            assert recorder.replays.pop() == used[1]
        executor.forward(pager.batch([(s, 1) for s in sequences[:count]]))
        assert recorder.replays.pop() == number
    executor.forward(pager.batch([(sequences[4], 1), (sequences[3], 2)]))
    assert recorder.replays == []
    late = [pager.sequence(tokens(8, seed)) for seed in range(5)]
    executor.forward(pager.batch([(s, 1) for s in late]))
    assert recorder.replays == []  # more sequences than any graph has


def test_a_replay_reads_and_writes_where_its_capture_did():
    executor, pager, recorder = captured((1, 2))
    truth = reference_logits(executor.spec, random_weights(executor.spec), tokens(20))
    sequence = pager.sequence(tokens(20))
    executor.forward(pager.batch([(sequence, 12)]))
    places = set()
    for position in range(12, 20):
        logits = executor.forward(pager.batch([(sequence, 1)]))
        places.add(logits.data_ptr())
        assert (logits.cpu() - truth[position]).abs().max() < 1e-4
    assert (len(places), len(recorder.replays)) == (1, 8)


def test_a_longer_step_than_was_foreseen_leaves_the_graphs_as_they_are():
    executor, pager, recorder = captured((1,))
    sequence = pager.sequence(tokens(40))
    executor.forward(pager.batch([(sequence, 38)]))
    truth = reference_logits(executor.spec, random_weights(executor.spec), tokens(40))
    logits = executor.forward(pager.batch([(sequence, 1)])).cpu()
    assert (logits - truth[38]).abs().max() < 1e-4
    assert recorder.replays == [0]


@pytest.mark.parametrize(
    ("attention", "field", "value"),
    [
        (AttentionSpec(17, 1, 16, 0.2, None), "num_key_value_heads", 1),
        (AttentionSpec(2, 2, 320, 0.2, None), "head_dim", 320),
        (AttentionSpec(2, 2, 8, 0.2, None), "head_dim", 8),
    ],
    ids=["many-heads-a-group", "long-heads", "short-heads"],
)
def test_heads_without_a_kernel_are_refused_by_name(
    attention: AttentionSpec, field: str, value: int
):
    with pytest.raises(UnsupportedModelError) as refusal:
        make(decoder_spec([attention]))
    assert (refusal.value.field, refusal.value.value) == (field, value)


@pytest.mark.parametrize(
    ("count", "formats"),
    [(1, "float32"), (4, "float32"), (4, ["int4_per_token_head", "float32", "turboquant_3bit_nc"])],
    ids=["1", "4", "coded"],
)
def test_launches_take_no_memory_and_wait_for_nothing(
    count: int, formats: str | list[str], monkeypatch: pytest.MonkeyPatch
):
    noted = Operations()
    launches: list[Callable[[], None]] = []

    def keep(given: Callable[[], None]) -> Callable[[], None]:
        launches.append(given)
        return given

    storage = GPUStorage(MIXED.cache_spec(BLOCK_SIZE, formats), 4, DEVICE)
    weights = on_device(random_weights(MIXED), DEVICE)
    GPUExecutor(MIXED, weights, storage, MAX_MODEL_LEN, (count,), capture=keep).warm_up()
    monkeypatch.setattr(*launcher(), lambda *_, **__: None)
    with noted:
        launches[0]()
    views = {f"aten.{name}" for name in ("slice.Tensor", "view.dtype", "view.default", "t.default")}
    assert noted.names <= {*views, "aten.detach.default", "aten.mm.out", "aten.addmm.out"}


@pytest.mark.parametrize("graph_sizes", [(), (4,)], ids=["as-it-is", "padded"])
@pytest.mark.parametrize("count", [1, 3])
def test_drawn_tokens_are_taken_from_where_they_are(count: int, graph_sizes: tuple[int, ...]):
    outputs = []
    for is_named in (False, True):
        executor, pager = make(decoder_spec([FULL]), graph_sizes=graph_sizes, max_num_seqs=3)
        sequences = [pager.sequence(tokens(4, seed)) for seed in range(3)]
        executor.forward(pager.batch([(s, 3) for s in sequences]))
        last = [sequence.token_ids[3] for sequence in sequences]
        executor.keep_drawn(torch.tensor([*last[::-1]], device=DEVICE))
        batch = pager.batch([(s, 1) for s in sequences[:count]])
        if is_named:
            drawn = DrawnTokens(np.arange(count), np.array([2, 1, 0][:count]))
            unknown = np.zeros(count, np.int64)
            batch = dataclasses.replace(batch, token_ids=unknown, drawn=drawn)
        outputs.append(executor.forward(batch).cpu().clone())
    assert torch.equal(*outputs)
