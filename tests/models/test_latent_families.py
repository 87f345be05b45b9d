"""Configs of families with latent attention, against what transformers makes of them."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch
import transformers

from checkpoints import CONFIGS, SIZES
from latent_cases import LATENT_CASES
from pagoda.errors import ModelError, UnsupportedModelError
from pagoda.models.config import ModelConfig
from pagoda.models.decoder import DecoderSpec, LatentAttentionSpec
from pagoda.models.names import HUGGING_FACE_NAMES
from pagoda.models.part import HeadRows, Part, RotatedHeads
from pagoda.models.registry import ARCHITECTURES, decoder_spec
from pagoda.models.weight_parts import DecoderParts

FAMILIES = {case.family for case in LATENT_CASES.values()}
NAMES = {
    family.model_type: name
    for name, family in ARCHITECTURES.items()
    if family.model_type in FAMILIES
}
DENSE = {"first_k_dense_replace": 99}


def assert_agrees(values: dict[str, Any]) -> DecoderSpec:
    """The spec says what transformers' model of the same config does."""
    spec = decoder_spec(ModelConfig(values))
    config = CONFIGS[values["model_type"]].from_dict(dict(values))
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    assert len(spec.layers) == config.num_hidden_layers
    assert spec.norm.eps == model.model.norm.variance_epsilon
    assert spec.tie_word_embeddings == config.tie_word_embeddings
    assert spec.embedding_scale == getattr(config, "scale_emb", 1.0)
    assert spec.logit_scale == pytest.approx(1 / getattr(config, "logits_scaling", 1.0))
    for layer, own in zip(spec.layers, model.model.layers, strict=True):
        attention, theirs = layer.attention, own.self_attn
        assert isinstance(attention, LatentAttentionSpec)
        assert attention.num_heads == theirs.num_heads
        assert attention.q_rank == theirs.q_lora_rank
        assert attention.rank == theirs.kv_lora_rank
        assert attention.nope_dim == theirs.qk_nope_head_dim
        assert attention.rope_dim == theirs.qk_rope_head_dim == 2 * len(attention.rope.inv_freq)
        assert attention.value_dim == theirs.v_head_dim
        assert attention.scale == pytest.approx(theirs.scaling)
        assert attention.norm_eps == theirs.kv_a_layernorm.variance_epsilon
        assert attention.down_bias == (theirs.kv_a_proj_with_mqa.bias is not None)
        assert attention.output_bias == (theirs.o_proj.bias is not None)
        assert layer.mlp.intermediate_size == config.intermediate_size
        assert layer.mlp.bias == (own.mlp.down_proj.bias is not None)
        assert layer.residual_scale == pytest.approx(getattr(own, "residual_scale", 1.0))
    parts = DecoderParts.of(spec, HUGGING_FACE_NAMES)
    counted = sum(math.prod(part.shape) for part in parts.all)
    assert counted == sum(weight.numel() for weight in model.parameters())
    matrices = sum(p.numel() for p in model.model.layers[0].self_attn.parameters() if p.dim() > 1)
    assert spec.layers[0].attention.num_weights(spec.hidden_size) == matrices
    return spec


@pytest.mark.parametrize("name", LATENT_CASES)
def test_configs_as_transformers_saves_them(name: str):
    case = LATENT_CASES[name]
    config = CONFIGS[case.family](**{**SIZES, **case.config})
    config.architectures = [NAMES[case.family]]
    assert_agrees(json.loads(config.to_json_string()))


@pytest.mark.parametrize("family", NAMES)
def test_the_defaults_are_those_of_transformers(family: str):
    sizes = {**SIZES, "num_attention_heads": 16, "model_type": family}
    sizes.pop("num_key_value_heads")
    spec = assert_agrees({**sizes, "architectures": [NAMES[family]], **DENSE})
    attention = spec.layers[0].attention
    assert isinstance(attention, LatentAttentionSpec)
    assert (attention.q_rank, attention.rank) == (
        (768, 256) if family == "minicpm3" else (1536, 512)
    )
    token_bytes = 2 * (attention.rank + attention.rope_dim)
    assert spec.cache_spec(16, "bfloat16").bytes_per_token == 4 * token_bytes


def read(family: str, **fields: Any) -> DecoderSpec:
    values = {**SIZES, "num_key_value_heads": 4, **DENSE, **fields}
    return decoder_spec(ModelConfig({**values, "architectures": [NAMES[family]]}))


@pytest.mark.parametrize(
    ("family", "fields", "error", "match"),
    [
        ("deepseek_v2", {"first_k_dense_replace": None}, UnsupportedModelError, "experts are not"),
        ("deepseek_v3", {"first_k_dense_replace": 3}, UnsupportedModelError, "experts are not"),
        ("deepseek_v3", {"rope_interleave": False}, UnsupportedModelError, "rope_interleave=False"),
        ("deepseek_v3", {"qk_rope_head_dim": 7}, ModelError, "must be even"),
        ("minicpm3", {"kv_lora_rank": 2**20}, ModelError, "kv_lora_rank=1048576: must be at most"),
        ("minicpm3", {"kv_lora_rank": 0}, ModelError, "kv_lora_rank=0"),
        ("minicpm3", {"scale_emb": "1"}, ModelError, "scale_emb"),
    ],
)
def test_what_is_wrong_or_not_covered_is_named(
    family: str, fields: dict[str, Any], error: type[ModelError], match: str
):
    with pytest.raises(error, match=match):
        read(family, **fields)


def test_null_means_none_or_as_it_is():
    plain = read("minicpm3", q_lora_rank=None, scale_depth=None, dim_model_base=None)
    assert plain.layers[0].attention.q_rank is None  # type: ignore[union-attr]
    assert (plain.layers[0].residual_scale, plain.logit_scale) == (1.0, 1.0)


def test_rows_of_heads_in_their_order():
    rotated = Part("q", (12, 5), RotatedHeads(6, 4, first=2))
    assert rotated.rows(0, 12).tolist() == [0, 1, 2, 4, 3, 5, 6, 7, 8, 10, 9, 11]
    taken = Part("kv", (2, 2, 5), whole=(10, 5), taken=HeadRows(5, first=3, num_taken=2))
    assert taken.rows(0, 4).tolist() == [3, 4, 8, 9]
    assert taken.rows(1, 2).tolist() == [4, 8]
