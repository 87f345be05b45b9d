"""The least times, beside numbers worked out by hand."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from pagoda.models.decoder import (
    AttentionSpec,
    DecoderLayer,
    DecoderSpec,
    ExpertsSpec,
    MLPSpec,
    NormSpec,
)
from pagoda.models.names import HUGGING_FACE_NAMES
from pagoda.models.weight_parts import DecoderParts
from pagoda.roofline import MachineLimits, WorkItem, draw, roofline_seconds
from pagoda.roofline.least_time import StepCost, step_costs
from pagoda.sizing.held_weights import hold


def reads(num_bytes: int) -> Callable[[int], int]:
    """Weights of which every step reads as much."""
    return lambda num_tokens: num_bytes


def decoder(layer: DecoderLayer, num_layers: int, hidden_size: int, vocab_size: int) -> DecoderSpec:
    return DecoderSpec(
        architecture="LlamaForCausalLM",
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        layers=(layer,) * num_layers,
        norm=NormSpec(1e-5),
        tie_word_embeddings=True,
        max_position_embeddings=8192,
        dtype="bfloat16",
    )


LAYER = DecoderLayer(AttentionSpec(2, 1, 2, 0.7, None), MLPSpec(3))
TINY = decoder(LAYER, num_layers=2, hidden_size=4, vocab_size=5)
"""A layer has 4 × 2 × (2 + 1 + 1) + 4 × 4 = 48 values around attention and 3 × 4 × 3 = 36 in the
feed-forward part, 84 in all; the head has 20. A token's K and V are 4 values a layer."""
WEIGHT_BYTES = 2 * (2 * 84 + 20)
KV_BYTES = 2 * 2 * 4
"""Bytes of one token, in bfloat16, both layers."""
TOKEN_OPERATIONS = 2 * 2 * 84
HEAD_OPERATIONS = 2 * 20
ATTENDED_OPERATIONS = 2 * 4 * 2 * 2
"""Operations for one token that one token attends to, both layers."""


def costs(*items: WorkItem, spec: DecoderSpec = TINY) -> list[StepCost]:
    return list(step_costs(spec, "bfloat16", reads(WEIGHT_BYTES), items))


def test_one_request() -> None:
    assert costs(WorkItem((1, 2, 3), 3)) == [
        # 1 + 2 + 3 tokens attended to
        StepCost(WEIGHT_BYTES, 3 * TOKEN_OPERATIONS + HEAD_OPERATIONS + 6 * ATTENDED_OPERATIONS),
        StepCost(
            WEIGHT_BYTES + 3 * KV_BYTES,
            TOKEN_OPERATIONS + HEAD_OPERATIONS + 4 * ATTENDED_OPERATIONS,
        ),
        StepCost(
            WEIGHT_BYTES + 4 * KV_BYTES,
            TOKEN_OPERATIONS + HEAD_OPERATIONS + 5 * ATTENDED_OPERATIONS,
        ),
    ]


def test_a_shared_prefix_is_computed_and_read_once() -> None:
    first, second = costs(WorkItem((1, 2, 3), 2), WorkItem((1, 2, 4, 5), 2))
    # 1 + 2 + 3 of the one, 3 + 4 of the other
    assert first.operations == (
        5 * TOKEN_OPERATIONS + 2 * HEAD_OPERATIONS + 13 * ATTENDED_OPERATIONS
    )
    assert second == StepCost(
        WEIGHT_BYTES + 5 * KV_BYTES,
        2 * TOKEN_OPERATIONS + 2 * HEAD_OPERATIONS + (4 + 5) * ATTENDED_OPERATIONS,
    )


def test_a_finished_request_costs_no_more_but_its_neighbours_still_share() -> None:
    steps = costs(WorkItem((1, 1, 1), 2), WorkItem((1, 1, 2), 1), WorkItem((1, 3), 2))
    # In order: (1, 1, 1), then (1, 1, 2), then (1, 3), which shares one token with either.
    assert steps[1].read_bytes == WEIGHT_BYTES + (3 + 1) * KV_BYTES
    assert len(steps) == 2


def test_a_window_bounds_what_is_read_and_attended_to() -> None:
    window = replace(LAYER, attention=replace(LAYER.attention, sliding_window=2))
    spec = replace(TINY, layers=(LAYER, window))
    first, second = costs(WorkItem((1, 2, 3, 4), 2), spec=spec)
    half = ATTENDED_OPERATIONS // 2
    # 1 + 2 + 3 + 4 in the one layer, 1 + 2 + 2 + 2 in the other
    assert first.operations == 4 * TOKEN_OPERATIONS + HEAD_OPERATIONS + (10 + 7) * half
    assert second == StepCost(
        WEIGHT_BYTES + (4 + 2) * KV_BYTES // 2,
        TOKEN_OPERATIONS + HEAD_OPERATIONS + (5 + 2) * half,
    )


def test_the_slower_of_reading_and_computing_counts_in_each_step() -> None:
    work = [WorkItem((1, 2, 3), 2)]
    prompt, answer = costs(*work)
    limits = MachineLimits(read_bandwidth=1.0, product_rate=2.0)
    # 1,280 operations against 376 bytes, then 504 operations against 424 bytes.
    assert (prompt.operations, prompt.read_bytes) == (1240, 376)
    assert (answer.operations, answer.read_bytes) == (504, 424)
    assert roofline_seconds(TINY, "bfloat16", reads(WEIGHT_BYTES), work, limits) == 1240 / 2 + 424
    assert roofline_seconds(TINY, "float32", reads(2 * WEIGHT_BYTES), work, limits) == 752 + 848


def test_the_weights_are_read_as_they_are_held() -> None:
    limits = MachineLimits(read_bandwidth=1.0, product_rate=1e9)
    work = [WorkItem((1, 2, 3), 2)]
    plain = roofline_seconds(TINY, "bfloat16", reads(WEIGHT_BYTES), work, limits)
    smaller = roofline_seconds(TINY, "bfloat16", reads(100), work, limits)
    assert smaller == plain - 2 * (WEIGHT_BYTES - 100)


def test_keys_and_values_are_read_as_each_layer_stores_them() -> None:
    item = WorkItem((1, 2, 3), 2)
    formats = ("bfloat16", "fp8_e4m3")
    _, answer = step_costs(TINY, formats, reads(WEIGHT_BYTES), [item])
    assert answer.read_bytes == WEIGHT_BYTES + 3 * (2 * 4 + 4)


def test_the_best_of_two_measurements() -> None:
    assert MachineLimits(1.0, 4.0).best_of(MachineLimits(2.0, 3.0)) == MachineLimits(2.0, 4.0)


@pytest.mark.parametrize(
    ("workload", "seconds"),
    [("single", 0.80), ("mixed", 3.02), ("shared", 1.23), ("long", 2.02), ("longbatch", 5.75)],
)
def test_the_floors_of_the_default_model(workload: str, seconds: float) -> None:
    layer = DecoderLayer(AttentionSpec(9, 3, 64, 0.125, None), MLPSpec(1536))
    smollm2 = decoder(layer, num_layers=30, hidden_size=576, vocab_size=49_152)
    weight_bytes = hold(DecoderParts.of(smollm2, HUGGING_FACE_NAMES), "bfloat16").step_bytes
    assert weight_bytes(1) == weight_bytes(100) == 2 * 134_515_008
    limits = MachineLimits(read_bandwidth=45e9, product_rate=0.96e12)
    least = roofline_seconds(smollm2, "bfloat16", weight_bytes, draw(workload, 0), limits)
    assert least == pytest.approx(seconds, abs=0.005)


def test_a_row_meets_the_experts_that_it_is_sent_to_the_shared_one_and_the_router() -> None:
    experts = ExpertsSpec(8, 2, 16, shared=MLPSpec(24))
    sparse, dense = (
        replace(TINY, layers=(replace(LAYER, mlp=mlp),) * 2) for mlp in (experts, MLPSpec(56))
    )
    [one] = costs(WorkItem((1, 2, 3), 1), spec=sparse)
    [other] = costs(WorkItem((1, 2, 3), 1), spec=dense)
    assert one.operations - other.operations == 2 * 3 * 2 * TINY.hidden_size * 8
