"""What the executor for CPUs promises beyond what all do: not a bit depends on company."""

from __future__ import annotations

import dataclasses
from functools import partial

import cpu_executors
import numpy as np
import pytest
import torch
from cpu_executors import BLOCK_SIZE, NUM_TOKENS, make
from decoders import decoder_spec, random_weights, rope_spec, tokens

from pagoda.errors import InvalidOptionError, UnsupportedModelError
from pagoda.execution.cpu.panel_weights import PanelWeights, require_even_rows
from pagoda.execution.reference import reference_logits
from pagoda.models.decoder import AttentionSpec, QKNorm, RopeSpec

FULL = AttentionSpec(6, 2, 32, 32**-0.5, rope_spec(32), qk_norm=QKNorm.HEAD, qkv_bias=True)
WINDOW = AttentionSpec(
    6, 2, 32, 0.3, None, sliding_window=7, output_bias=True, logit_cap=5.0, sink_logits=True
)
LONG_WINDOW = AttentionSpec(
    6, 2, 32, 0.2, RopeSpec((1.0, 0.1, 0.01), 1.2), sliding_window=270, sink_logits=True
)  # fmt: skip
MIXED = decoder_spec([FULL, WINDOW, LONG_WINDOW])
run = partial(cpu_executors.run, MIXED)


@pytest.fixture(scope="module")
def expected() -> torch.Tensor:
    return reference_logits(MIXED, random_weights(MIXED), tokens(NUM_TOKENS), torch.float64)


def test_logits_are_those_of_the_reference(expected: torch.Tensor):
    logits = run("float32", [NUM_TOKENS])
    assert logits.dtype == torch.float32
    assert (logits - expected).abs().max() < 1e-4
    assert torch.equal(logits.argmax(-1), expected.argmax(-1))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("chunks", "companions"),
    [
        ([1] * NUM_TOKENS, 0),
        ([10] * 30, 0),
        ([100, *[1] * 50, 3, 9, 33, 2, 1, 1, 101], 0),
        ([20] * 15, 3),
        ([*[150], *[1] * 150], 2),
    ],
    ids=["one-by-one", "tens", "uneven", "among-others", "decode-among-others"],
)
def test_not_a_bit_depends_on_chunks_or_companions(dtype: str, chunks: list[int], companions: int):
    assert torch.equal(run(dtype, chunks, companions), run(dtype, [NUM_TOKENS]))


@pytest.mark.threads
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_not_a_bit_depends_on_the_number_of_threads(dtype: str):
    alone = run(dtype, [60, *[1] * 5, 200, *[1] * 5])
    assert torch.equal(alone, run(dtype, [60, *[1] * 5, 200, *[1] * 5], num_threads=2))


def test_a_float32_model_can_keep_a_bfloat16_cache(expected: torch.Tensor):
    logits = run("float32", [150, *[1] * 150], cache_dtype="bfloat16")
    error = (logits - expected).square().mean().sqrt() / expected.square().mean().sqrt()
    assert 1e-6 < error < 0.02
    assert torch.equal(logits, run("float32", [NUM_TOKENS], cache_dtype="bfloat16"))


def test_only_the_rows_asked_for_come_back_and_they_are_the_same():
    executor, pager = make(MIXED)
    first, second = pager.sequence(tokens(30)), pager.sequence(tokens(20, seed=1))
    batch = pager.batch([(first, 30), (second, 20)])
    everything = executor.forward(batch).clone()
    for rows in ([29, 49], [0], [], list(range(13, 40))):
        some = dataclasses.replace(batch, logit_rows=np.array(rows, np.int64))
        logits = executor.forward(some)
        assert logits.shape == (len(rows), MIXED.vocab_size)
        assert torch.equal(logits, everything[rows])


def test_only_the_slots_of_the_batch_are_written():
    executor, pager = make(MIXED, num_blocks=8)
    for layer in executor.storage.layers:
        layer.blocks.fill_(7.0)
    sequence = pager.sequence(tokens(20))
    executor.forward(pager.batch([(sequence, 20)]))
    spec = executor.storage.spec
    in_place: dict[int, set[int]] = {}  # the groups with a layer there
    for place, group in zip(spec.place_of_layers, spec.group_of_layers, strict=True):
        in_place.setdefault(place, set()).add(group)
    for place, layer in zip(spec.place_of_layers, executor.storage.layers, strict=True):
        by_slot = layer.values.permute(0, 2, 4, 1, 3).reshape(pager.num_blocks * BLOCK_SIZE, -1)
        keys_by_slot = layer.keys.permute(0, 3, 1, 2, 4).reshape(len(by_slot), -1)
        written = torch.zeros(len(by_slot), dtype=torch.bool)
        for group in in_place[place]:
            table = sequence.tables[group]
            slots = [table[i // BLOCK_SIZE] * BLOCK_SIZE + i % BLOCK_SIZE for i in range(20)]
            written[slots] = True
        for side in (by_slot, keys_by_slot):
            assert torch.equal((side != 7.0).any(1), written)


def test_warm_up_touches_no_block_and_later_steps_are_the_same():
    executor, pager = make(MIXED, num_blocks=8)
    before = [executor.storage.export_block(block) for block in range(pager.num_blocks)]
    executor.warm_up()
    for block in range(pager.num_blocks):
        assert np.array_equal(before[block], executor.storage.export_block(block))
    logits = executor.forward(pager.batch([(pager.sequence(tokens(20)), 20)]))
    assert torch.equal(logits, run("float32", [20]))


def test_what_cannot_run_is_refused_by_name():
    spec = decoder_spec([FULL])
    with pytest.raises(InvalidOptionError) as refusal:
        PanelWeights.take_over(random_weights(spec, torch.float16))
    assert refusal.value.field == "dtype"
    odd = decoder_spec([FULL], hidden_size=49)
    require_even_rows(odd, "float32")
    with pytest.raises(UnsupportedModelError, match="--dtype float32 runs it") as refusal:
        require_even_rows(odd, "bfloat16")
    assert (refusal.value.field, refusal.value.value) == ("hidden_size", 49)


def test_sequences_behind_one_prefix_are_as_each_alone():
    alone = run("float32", [NUM_TOKENS])
    for dtype in ("float32", "bfloat16"):
        executor, pager = make(MIXED, dtype)
        first = pager.sequence(tokens(NUM_TOKENS))
        executor.forward(pager.batch([(first, NUM_TOKENS - 4)]))
        others = []
        for _ in range(3):
            other = pager.sequence(tokens(NUM_TOKENS))
            shared = slice((NUM_TOKENS - 4) // BLOCK_SIZE)
            for own, firsts in zip(other.tables, first.tables, strict=True):
                own[shared] = firsts[shared]
            other.num_computed = (NUM_TOKENS - 4) // BLOCK_SIZE * BLOCK_SIZE
            others.append(other)
        behind = NUM_TOKENS - 4 - others[0].num_computed
        executor.forward(pager.batch([(other, behind) for other in others]))
        together = [first, *others]
        for _ in range(4):
            logits = executor.forward(pager.batch([(s, 1) for s in together])).clone()
            assert (logits == logits[0]).all()
        expected = alone if dtype == "float32" else run(dtype, [NUM_TOKENS])
        assert torch.equal(logits[0], expected[-1])
