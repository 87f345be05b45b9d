"""Which type each plain matrix becomes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pagoda.models.decoder import AttentionSpec, DecoderLayer, DecoderSpec, MLPSpec, NormSpec
from pagoda.models.names import GGUF_NAMES
from pagoda.models.weight_parts import DecoderParts
from pagoda.sizing.quantised_weights import RECIPES, quantised_types

LAYER = DecoderLayer(AttentionSpec(8, 4, 32, 0.1, None), MLPSpec(544))
SPEC = DecoderSpec(
    architecture="LlamaForCausalLM",
    vocab_size=100,
    hidden_size=256,
    layers=(LAYER,),
    norm=NormSpec(1e-5),
    tie_word_embeddings=False,
    max_position_embeddings=128,
    dtype="bfloat16",
)
DOWN, UP = "blk.0.ffn_down.weight", "blk.0.ffn_up.weight"


def wanted(
    quantization: str | None, types: dict[str, str] | None = None, spec: DecoderSpec = SPEC
) -> dict[str, str]:
    return quantised_types(DecoderParts.of(spec, GGUF_NAMES), types or {}, quantization)


@pytest.mark.parametrize(
    ("name", "matrices", "rows_of_544", "head"),
    [
        ("q8_0", "Q8_0", "Q8_0", "Q8_0"),
        ("q6_k", "Q6_K", "Q8_0", "Q6_K"),
        ("q4_k", "Q4_K", "Q5_0", "Q6_K"),
        ("q4_0", "Q4_0", "Q4_0", "Q6_K"),
    ],
)
def test_a_name_stands_for_a_type_of_each_matrix(
    name: str, matrices: str, rows_of_544: str, head: str
) -> None:
    found = wanted(name)
    others = {"q", "k", "v", "output"}
    expected = {f"blk.0.attn_{each}.weight": matrices for each in others}
    expected |= {UP: matrices, "blk.0.ffn_gate.weight": matrices, DOWN: rows_of_544}
    expected |= {"token_embd.weight": matrices, "output.weight": head}
    assert found == expected
    tied = wanted(name, spec=replace(SPEC, tie_word_embeddings=True))
    assert tied["token_embd.weight"] == head
    assert "output.weight" not in tied


@pytest.mark.parametrize("name", [None, "none"])
def test_without_a_name_nothing_is_quantised(name: str | None) -> None:
    assert wanted(name) == {}


@pytest.mark.parametrize("name", RECIPES)
def test_plain_types_of_a_file_alone_are_quantised(name: str) -> None:
    types = {UP: "Q2_K", DOWN: "IQ2_XXS", "blk.0.attn_q.weight": "F16"}
    found = wanted(name, types)
    assert wanted(name).keys() - found.keys() == {UP, DOWN}
    assert found["blk.0.attn_q.weight"] == wanted(name)["blk.0.attn_q.weight"]


@pytest.mark.parametrize("name", RECIPES)
def test_rows_that_32_does_not_divide_stay_plain(name: str) -> None:
    odd = replace(LAYER, mlp=MLPSpec(560))
    found = wanted(name, spec=replace(SPEC, layers=(odd,)))
    assert wanted(name).keys() - found.keys() == {DOWN}
