"""What weights take, and how it is said."""

from __future__ import annotations

from collections.abc import Mapping
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
from pagoda.models.names import GGUF_NAMES
from pagoda.models.registry import weight_names
from pagoda.models.weight_parts import DecoderParts
from pagoda.sizing.held_weights import HeldWeights, hold
from pagoda.sizing.quantised_weights import quantised_types

LAYER = DecoderLayer(AttentionSpec(4, 2, 32, 0.1, None), MLPSpec(96))
SPEC = DecoderSpec(
    architecture="LlamaForCausalLM",
    vocab_size=100,
    hidden_size=64,
    layers=(LAYER, LAYER),
    norm=NormSpec(1e-5),
    tie_word_embeddings=False,
    max_position_embeddings=128,
    dtype="bfloat16",
)
LAYER_VALUES = 64 * (128 + 2 * 64 + 128) + 3 * 64 * 96 + 2 * 64
HEAD_VALUES = 100 * 64
Q8_0_BYTES = 34 / 32
"""Of one number."""


def held(
    types: Mapping[str, str],
    *,
    spec: DecoderSpec = SPEC,
    keeps: bool = True,
    quantised: Mapping[str, str] | None = None,
) -> HeldWeights:
    parts = DecoderParts.of(spec, GGUF_NAMES)
    return hold(parts, "bfloat16", types, keeps_stored=keeps, quantised=quantised or {})


def test_plain_weights_are_numbers_times_bytes() -> None:
    layers = 2 * (2 * LAYER_VALUES + 64)
    plain = held({})
    assert plain == HeldWeights(layers + 4 * HEAD_VALUES, layers + 2 * HEAD_VALUES, "bfloat16")
    tied = held({}, spec=replace(SPEC, tie_word_embeddings=True))
    assert tied.total_bytes == tied.read_bytes == plain.read_bytes


def test_gate_and_up_are_kept_each_for_itself() -> None:
    saved = 64 * 96 * (2 - Q8_0_BYTES)
    one = held({"blk.1.ffn_up.weight": "Q8_0", "blk.1.ffn_gate.weight": "F16"})
    assert one.total_bytes == held({}).total_bytes - saved
    assert (one.kept, one.converted) == (("Q8_0",), ("F16",))


@pytest.mark.parametrize("kind", ["attn_norm.weight", "attn_q.bias"])
def test_a_vector_is_never_kept(kind: str) -> None:
    layer = replace(LAYER, attention=replace(LAYER.attention, qkv_bias=True))
    spec = replace(SPEC, layers=(layer, layer))
    found = held({f"blk.0.{kind}": "Q8_0"}, spec=spec)
    assert found.total_bytes == held({}, spec=spec).total_bytes
    assert (found.kept, found.converted) == ((), ("Q8_0",))


def test_the_last_panel_of_an_embedding_is_filled_up() -> None:
    kept = held({"token_embd.weight": "Q8_0"})
    assert kept.total_bytes == held({}).total_bytes - HEAD_VALUES * 2 + 128 * 64 * Q8_0_BYTES
    assert kept.read_bytes == held({}).read_bytes  # a few rows of it do not count


def test_who_keeps_nothing_turns_all() -> None:
    types = {"output.weight": "Q6_K", "blk.0.attn_q.weight": "Q4_K"}
    plain = held(types, keeps=False)
    assert plain.total_bytes == held({}).total_bytes
    assert (plain.kept, plain.converted, plain.stored_as) == ((), ("Q4_K", "Q6_K"), None)


def test_what_is_quantised_is_neither_kept_nor_converted() -> None:
    saved = 64 * 96 * (2 - Q8_0_BYTES)
    types = {"blk.1.ffn_up.weight": "F16", "blk.0.ffn_up.weight": "Q8_0"}
    found = held(types, quantised={"blk.1.ffn_up.weight": "Q8_0"})
    assert found.total_bytes == held({}).total_bytes - 2 * saved
    assert (found.kept, found.quantised, found.converted) == (("Q8_0",), ("Q8_0",), ())
    assert found.stored_as == "Q8_0"


def test_parts_that_end_within_a_panel_stay_plain() -> None:
    layer = replace(LAYER, attention=replace(LAYER.attention, num_kv_heads=1, head_dim=16))
    spec = replace(SPEC, layers=(layer,))
    wanted = {f"blk.0.attn_{name}.weight": "Q8_0" for name in "qkv"}
    found = held({}, spec=spec, quantised=wanted)
    assert (found.total_bytes, found.quantised) == (held({}, spec=spec).total_bytes, ())


@pytest.mark.parametrize(
    ("kept", "quantised", "converted", "line"),
    [
        ((), (), (), "2.0 GiB, bfloat16"),
        ((), (), ("F16",), "2.0 GiB, F16 as bfloat16"),
        (("Q8_0",), (), (), "2.0 GiB, Q8_0 as stored"),
        (("Q4_1", "Q8_0"), (), ("F32",), "2.0 GiB, Q4_1 and Q8_0 as stored, F32 as bfloat16"),
        (("Q3_K", "Q4_K", "Q6_K"), (), (), "2.0 GiB, Q3_K, Q4_K and Q6_K as stored"),
        ((), ("Q4_K", "Q6_K"), (), "2.0 GiB, quantised to Q4_K and Q6_K"),
        (("Q4_1",), ("Q8_0",), (), "2.0 GiB, quantised to Q8_0, Q4_1 as stored"),
    ],
)
def test_a_line_says_it(
    kept: tuple[str, ...], quantised: tuple[str, ...], converted: tuple[str, ...], line: str
) -> None:
    told = HeldWeights(2**31, 2**31, "bfloat16", kept, converted, quantised)
    assert str(told) == line
    assert told.as_json()["summary"] == line


def test_a_scheme_is_told_with_its_types() -> None:
    told = HeldWeights(
        2**31, 2**31, "bfloat16", kept=("int4_f16_g128",), converted=("F16",), scheme="GPTQ"
    )
    assert str(told) == "2.0 GiB, GPTQ: int4_f16_g128 as stored, F16 as bfloat16"
    assert told.stored_as == "GPTQ: int4_f16_g128"
    assert told.as_json()["scheme"] == "GPTQ"


def test_a_step_reads_the_experts_that_its_tokens_may_be_sent_to() -> None:
    experts = ExpertsSpec(8, 2, 96, shared=MLPSpec(32))
    spec = replace(SPEC, layers=(replace(LAYER, mlp=experts),) * 2)
    names = weight_names("MixtralForCausalLM", "directory", ())
    shared = {name: f"mlp.{name}" for name in ("shared_gate", "shared_up", "shared_down")}
    assert names.experts is not None
    named = replace(names, experts=replace(names.experts, **shared))
    held = hold(DecoderParts.of(spec, named), "bfloat16")
    of_experts = 2 * 8 * 3 * 64 * 96 * 2
    assert held.chosen_bytes == of_experts
    assert held.step_bytes(1) == held.read_bytes - of_experts * 3 // 4
    assert held.step_bytes(2) == held.read_bytes - of_experts * 9 // 16
    assert held.step_bytes(10**6) == held.read_bytes


@pytest.mark.parametrize("architecture", ["MixtralForCausalLM", "GptOssForCausalLM"])
@pytest.mark.parametrize("quantization", [None, "q8_0", "q4_k"])
def test_one_stands_for_all_that_are_alike(architecture: str, quantization: str | None) -> None:
    """The first expert, whether each has a tensor of its own or not, with biases, and rows that end
    in a panel; and the first layer."""
    names = weight_names(architecture, "directory", ())
    experts = ExpertsSpec(6, 2, 288, bias=architecture == "GptOssForCausalLM")
    sparse = replace(LAYER, mlp=experts)
    spec = replace(SPEC, hidden_size=256, layers=(LAYER, sparse, sparse, LAYER, sparse))
    found = []
    for parts, num_layers, num_experts in (
        (DecoderParts.of(spec, names), 5, 6),
        (DecoderParts.of(spec, names, one_expert=True), 5, 1),
        (DecoderParts.of_kinds(spec, names), 2, 1),
    ):
        wanted = quantised_types(parts, {}, quantization)
        found.append(hold(parts, "bfloat16", {}, keeps_stored=True, quantised=wanted))
        assert len(parts.layers) == num_layers
        assert parts.layers[1].experts is not None
        assert len(parts.layers[1].experts.gate) == num_experts
    assert found[0] == found[1] == found[2]
    assert found[0].chosen_bytes > 0
