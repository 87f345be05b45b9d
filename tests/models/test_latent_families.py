"""Configs of families with latent attention, against what transformers makes of them."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
import transformers

from checkpoints import CONFIGS, ROUTED, SIZES
from family_agreement import assert_feed_forward_agrees, assert_numbers_agree
from latent_cases import LATENT_CASES, LATENT_FAMILIES
from pagoda.errors import ModelError, UnsupportedModelError
from pagoda.models.config import ModelConfig
from pagoda.models.decoder import DecoderSpec, ExpertsSpec, LatentAttentionSpec
from pagoda.models.part import HeadRows, Part, RotatedHeads
from pagoda.models.registry import ARCHITECTURES, decoder_spec

NAMES = {
    family.model_type: name
    for name, family in ARCHITECTURES.items()
    if family.model_type in LATENT_FAMILIES
}
DENSE = {"first_k_dense_replace": 99}
SPARSE = {"first_k_dense_replace": 1}
FEW = {**SPARSE, **ROUTED}


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
        assert_feed_forward_agrees(layer.mlp, own, config)
        assert layer.residual_scale == pytest.approx(getattr(own, "residual_scale", 1.0))
    assert_numbers_agree(spec, model.model.layers)
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
    sizes = {**SIZES, "num_attention_heads": 16, "num_experts_per_tok": 3, "model_type": family}
    sizes.pop("num_key_value_heads")
    assert_agrees({**sizes, "architectures": [NAMES[family]]})
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
        ("deepseek_v2", SPARSE, ModelError, "num_experts_per_tok=None: .*lacks"),
        ("deepseek_v2", {"norm_topk_prob": True}, UnsupportedModelError, "norm_topk_prob=True"),
        (
            "deepseek_v2",
            {**FEW, "scoring_func": "sigmoid"},
            UnsupportedModelError,
            "only softmax is covered",
        ),
        (
            "deepseek_v2",
            {**FEW, "topk_method": "noaux_tc"},
            UnsupportedModelError,
            "topk_method='noaux_tc': covered are greedy, group_limited_greedy",
        ),
        (
            "deepseek_v2",
            {**FEW, "topk_method": "group_limited_greedy"},
            ModelError,
            "n_group=None: .*lacks",
        ),
        (
            "deepseek_v3",
            {**FEW, "topk_method": "greedy"},
            UnsupportedModelError,
            "covered are noaux_tc",
        ),
        ("deepseek_v3", {**FEW, "n_group": 5}, ModelError, "n_group=5: must divide the 12"),
        ("deepseek_v3", {**FEW, "n_group": 12}, ModelError, "groups of at least 2"),
        (
            "deepseek_v3",
            {**FEW, "n_group": 3, "topk_group": 4},
            ModelError,
            "topk_group=4: must be at most the 3",
        ),
        (
            "deepseek_v3",
            {**FEW, "n_group": 6, "topk_group": 1},
            ModelError,
            "num_experts_per_tok=3: must be at most the 2 experts of 1 groups",
        ),
        (
            "deepseek_v3",
            {**FEW, "num_experts_per_tok": 13},
            ModelError,
            "num_experts_per_tok=13: must be at most the 12",
        ),
        (
            "deepseek_v3",
            {**FEW, "n_routed_experts": 2**20},
            ModelError,
            "n_routed_experts=1048576: must be at most",
        ),
        (
            "deepseek_v3",
            {"num_nextn_predict_layers": 10**9},
            ModelError,
            "num_nextn_predict_layers=1000000000: must be at most",
        ),
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


def test_which_layers_have_experts():
    """`moe_layer_freq` is read as by DeepSeek's own code; transformers takes it for 1."""

    def has_experts(**fields: Any) -> list[bool]:
        spec = read("deepseek_v3", **{**FEW, "n_group": 1, "topk_group": 1, **fields})
        return [isinstance(layer.mlp, ExpertsSpec) for layer in spec.layers]

    assert has_experts() == [False, True, True, True]
    assert has_experts(first_k_dense_replace=0) == [True] * 4
    assert has_experts(moe_layer_freq=2) == [False, False, True, False]
    without = read("deepseek_v2", **{**FEW, "n_shared_experts": None}).layers[3].mlp
    assert isinstance(without, ExpertsSpec)
    assert without.shared is None


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
