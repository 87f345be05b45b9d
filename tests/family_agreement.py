"""What transformers makes of a config, held against the decoder that Pagoda reads from it."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from checkpoints import (
    CONFIGS,
    CORRECTION,
    attention_of,
    empty_model,
    first_of,
    language_layers,
    layers_of,
    num_kv_heads,
)
from pagoda.models.config import ModelConfig
from pagoda.models.decoder import (
    PARALLEL_NORM,
    PARALLEL_NORMS,
    POST_NORM,
    PRE_NORM,
    SANDWICH_NORM,
    AttentionSpec,
    DecoderLayer,
    DecoderSpec,
    ExpertsSpec,
    Learned,
    MLPSpec,
    NormPlacement,
    QKNorm,
)
from pagoda.models.registry import ARCHITECTURES, decoder_spec
from pagoda.models.weight_parts import DecoderParts


def transformers_config(values: dict[str, Any]) -> Any:
    """What transformers reads from the same file.

    As its `from_dict`, which writes out every config that it has made.
    """
    return CONFIGS[values["model_type"]](**copy.deepcopy(values))


HAS_POSITIONS: dict[str, Callable[[Any], bool]] = {
    "cohere2": lambda own: own.sliding_window is not None,
    "exaone4": lambda own: own.sliding_window is None or own.is_sliding,
    "smollm3": lambda own: bool(own.use_rope),
}
"""Whether attention rotates heads, in families where not all layers do."""
GEMMAS = ("gemma", "gemma2", "gemma3_text")
CENTRED = (
    "cohere", "cohere2", "falcon", "gpt_neox", "olmo", "phi", "stablelm", "starcoder2",
)  # fmt: skip
"""Families with layer norm."""


def assert_agrees(values: dict[str, Any]) -> None:
    """The spec says what transformers' model of the same config does."""
    assert_same(decoder_spec(ModelConfig(values)), transformers_config(values))


def assert_same(spec: DecoderSpec, whole: Any) -> None:
    """As `assert_agrees`, of what both have read."""
    config, model = whole.get_text_config(), empty_model(whole)
    decoder, kind = language_layers(model), config.model_type
    assert len(spec.layers) == config.num_hidden_layers
    assert spec.vocab_size == config.vocab_size
    assert spec.hidden_size == config.hidden_size
    assert spec.tie_word_embeddings == whole.tie_word_embeddings
    norm = first_of(decoder, "norm", "final_layernorm", "final_layer_norm", "ln_f")
    assert (spec.norm.eps, spec.norm.is_centred) == (norm_eps(norm), kind in CENTRED)
    assert spec.norm.weight_offset == (kind in GEMMAS)
    assert spec.norm.learned == learned(norm)
    assert spec.logit_bias == (model.get_output_embeddings().bias is not None)
    assert spec.embedding_scale == embedding_scale(config, decoder)
    divisor = getattr(config, "logits_scaling", 1.0)
    assert spec.logit_scale == pytest.approx(getattr(config, "logit_scale", 1.0) / divisor)
    assert spec.logit_cap == getattr(config, "final_logit_softcapping", None)
    layers = layers_of(model)
    assert_numbers_agree(spec, layers)
    for index, layer in enumerate(spec.layers):
        assert_layer_agrees(layer, layers[index], config, index)


def norm_eps(norm: Any) -> float:
    """OLMo 1's is a number in its code."""
    if learned(norm) is Learned.NOTHING:
        return 1e-5
    return norm.eps if hasattr(norm, "eps") else norm.variance_epsilon


def learned(norm: Any) -> Learned:
    if getattr(norm, "weight", None) is None:
        return Learned.NOTHING
    has_bias = getattr(norm, "bias", None) is not None
    return Learned.WEIGHT_AND_BIAS if has_bias else Learned.WEIGHT


def embedding_scale(config: Any, decoder: Any) -> float:
    if config.model_type in GEMMAS:
        return config.hidden_size**0.5
    return getattr(decoder, "embedding_multiplier", 1.0)


def assert_layer_agrees(layer: DecoderLayer, own: Any, config: Any, index: int) -> None:
    """One layer, by the modules that transformers makes for it."""
    theirs, attention = attention_of(own), layer.attention
    has_positions = HAS_POSITIONS.get(config.model_type, lambda _: True)(theirs)
    assert attention.num_heads == config.num_attention_heads
    assert attention.num_kv_heads == num_kv_heads(config)
    assert attention.head_dim == head_size(theirs)
    assert attention.scale == pytest.approx(first_of(theirs, "scaling", "inv_norm_factor"))
    assert attention.logit_cap == getattr(theirs, "attn_logit_softcapping", None)
    assert attention.sliding_window == window(config, index)
    assert attention.qk_norm == head_norm(theirs)
    first = first_of(theirs, "qkv_proj", "q_proj", "query_key_value")
    assert attention.qkv_bias == (first.bias is not None)
    assert attention.output_bias == (first_of(theirs, "o_proj", "dense").bias is not None)
    assert attention.sink_logits == hasattr(theirs, "sinks")
    assert_feed_forward_agrees(layer.mlp, own, config)
    assert layer.residual_scale == getattr(own, "residual_multiplier", 1.0)
    assert layer.norms == norms(own)
    assert (attention.rope is not None) == has_positions
    if attention.rope is not None:
        assert_rope_agrees(attention, config, index)


def assert_feed_forward_agrees(mlp: MLPSpec | ExpertsSpec, own: Any, config: Any) -> None:
    """The second half of a layer, by its modules; how rows are routed, by transformers' config."""
    module = own.block_sparse_moe if hasattr(own, "block_sparse_moe") else own.mlp
    if isinstance(mlp, MLPSpec):
        down = first_of(module, "down_proj", "dense_4h_to_h", "fc2", "c_proj")
        assert mlp.intermediate_size == down.in_features
        assert mlp.bias == (down.bias is not None)
        assert mlp.is_gated == hasattr(module, "down_proj")
        return
    experts = module.output_linear if hasattr(module, "output_linear") else module.experts
    down = experts.weight if hasattr(experts, "weight") else experts.down_proj
    assert sorted(down.shape) == sorted(
        (mlp.num_experts, mlp.intermediate_size, config.hidden_size)
    )
    assert mlp.num_used == config.num_experts_per_tok
    assert mlp.bias == mlp.router_bias == hasattr(experts, "down_proj_bias")
    shared = [getattr(module, name, None) for name in ("shared_expert", "shared_experts")]
    widths = [each.down_proj.in_features for each in shared if each is not None]
    assert widths == ([] if mlp.shared is None else [mlp.shared.intermediate_size])
    assert mlp.shared_gate == hasattr(module, "shared_expert_gate")
    assert mlp.normalised == getattr(config, "norm_topk_prob", True)
    assert mlp.scale == getattr(config, "routed_scaling_factor", 1.0)
    gate = getattr(module, "gate", None)
    corrected = hasattr(gate, "e_score_correction_bias")
    assert mlp.scoring == ("sigmoid" if corrected else "softmax")
    assert mlp.correction_bias == (corrected or hasattr(gate, "moe_statics"))
    is_grouped = corrected or getattr(config, "topk_method", None) == "group_limited_greedy"
    groups = (config.n_group, config.topk_group) if is_grouped else (1, 1)
    assert (mlp.num_groups, mlp.num_used_groups) == groups
    assert mlp.group_top == (2 if corrected and mlp.num_groups > 1 else 1)


def assert_numbers_agree(spec: DecoderSpec, layers: Any) -> None:
    """As many numbers in the layers as transformers' modules have, corrections left out."""
    parts = DecoderParts.of(spec, ARCHITECTURES[spec.architecture].names)
    for layer, own in zip(parts.layers, layers, strict=True):
        found = [
            part for weight in layer for part in weight if part.held_as is None and not part.is_one
        ]
        counted = sum(math.prod(part.shape) for part in found)
        named = own.named_parameters()
        assert counted == sum(w.numel() for name, w in named if not name.endswith(CORRECTION))


def assert_rope_agrees(attention: AttentionSpec, config: Any, index: int) -> None:
    """How much of a head rotates and, without an extension, by which base."""
    parameters = config.rope_parameters
    if "rope_type" not in parameters:
        parameters = parameters[config.layer_types[index]]
    rotary_dim = int(attention.head_dim * parameters.get("partial_rotary_factor", 1.0))
    assert len(attention.rope.inv_freq) == rotary_dim // 2
    if parameters["rope_type"] == "default":
        second = parameters["rope_theta"] ** (-2 / rotary_dim)
        assert attention.rope.inv_freq[1] == pytest.approx(second)


def head_size(own: Any) -> int:
    """Numbers of a head of transformers' attention."""
    return first_of(own, "head_dim", "head_size")


def head_norm(own: Any) -> QKNorm | None:
    """What is normed together before the rotation, by the weights of transformers' norm."""
    if not hasattr(own, "q_norm"):
        return None
    return QKNorm.HEAD if own.q_norm.weight.shape == (own.head_dim,) else QKNorm.ROW


def norms(own: Any) -> NormPlacement:
    """The norms of a layer by their names, which say something else in each family."""
    has = partial(_has, own)
    takes_the_same = getattr(own, "use_parallel_residual", False)
    if has("ln_mlp") or (takes_the_same and has("post_attention_layernorm")):
        return PARALLEL_NORMS
    if has("post_self_attn_layernorm"):  # GLM-4
        return SANDWICH_NORM
    if has("post_feedforward_layernorm"):
        return SANDWICH_NORM if has("pre_feedforward_layernorm") else POST_NORM
    return PRE_NORM if has("post_attention_layernorm") else PARALLEL_NORM


def _has(own: Any, name: str) -> bool:
    return getattr(own, name, None) is not None


def window(config: Any, index: int) -> int | None:
    """The window of a layer by transformers' config."""
    types = getattr(config, "layer_types", None)
    if types is None:
        return getattr(config, "sliding_window", None)
    return config.sliding_window if types[index] == "sliding_attention" else None
