"""What llama.cpp's converter writes of a transformers config, by model type.

A feature that it does not write (a score cap in Gemma 3, a bias in Cohere 2) cannot be stored.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from checkpoints import first_of, num_kv_heads

Keys = dict[str, Any]
SIGMOID = 2


def model_keys(config: Any) -> Keys:
    """The metadata of the model, under the architecture's name."""
    head_dim = getattr(config, "head_dim", None)
    usual = {
        "embedding_length": config.hidden_size,
        "feed_forward_length": first_of(config, "ffn_hidden_size", "intermediate_size"),
        "block_count": config.num_hidden_layers,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": num_kv_heads(config),
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
        "attention.layer_norm_rms_epsilon": getattr(config, "rms_norm_eps", None),
        "context_length": config.max_position_embeddings,
    }
    own = _OWN_KEYS.get(config.model_type, lambda config: {})
    keys = {**usual, **_rope_keys(config), **own(config)}
    return {key: value for key, value in keys.items() if value is not None}


def rope_factors(config: Any) -> dict[str, np.ndarray]:
    """The divisors of LongRoPE, as tensors."""
    if config.rope_parameters.get("rope_type") != "longrope":
        return {}
    return {
        f"rope_factors_{length}.weight": np.array(
            config.rope_parameters[f"{length}_factor"], dtype=np.float32
        )
        for length in ("long", "short")
    }


def _rope_keys(config: Any) -> Keys:
    sections = config.rope_parameters
    parameters = sections.get("full_attention", sections)
    kind, scaling = parameters["rope_type"], {}
    if kind in ("linear", "yarn"):
        scaling = {
            "rope.scaling.type": kind,
            "rope.scaling.factor": parameters["factor"],
            "rope.scaling.original_context_length": parameters.get(
                "original_max_position_embeddings"
            ),
            "rope.scaling.yarn_attn_factor": parameters.get("attention_factor"),
        }
    local = sections.get("sliding_attention", {}).get("rope_theta")
    return {
        "rope.freq_base": float(parameters["rope_theta"]),
        "rope.freq_base_swa": None if local is None else float(local),
        **scaling,
    }


def _window(config: Any) -> Keys:
    return {"attention.sliding_window": config.sliding_window}


def _window_and_layers(config: Any) -> Keys:
    if config.sliding_window is None:
        return {}
    slides = [kind == "sliding_attention" for kind in config.layer_types]
    return {**_window(config), "attention.sliding_window_pattern": slides}


def _cohere2(config: Any) -> Keys:
    return {
        **_window(config),
        "attention.layer_norm_epsilon": config.layer_norm_eps,
        "logit_scale": config.logit_scale,
        "rope.dimension_count": config.hidden_size // config.num_attention_heads,
        "rope.scaling.type": "none",
    }


def _gemma2(config: Any) -> Keys:
    caps = ("attn_logit_softcapping", "final_logit_softcapping")
    return {**_window(config), **{name: getattr(config, name) for name in caps}}


def _gemma3(config: Any) -> Keys:
    return {**_window(config), "final_logit_softcapping": config.final_logit_softcapping}


def _glm(config: Any) -> Keys:
    share = config.rope_parameters["partial_rotary_factor"]
    head_dim = getattr(config, "head_dim", None)
    head_dim = head_dim or config.hidden_size // config.num_attention_heads
    return {"rope.dimension_count": int(head_dim * share)}


def _granite(config: Any) -> Keys:
    return {
        "attention.key_length": None,
        "attention.value_length": None,
        "attention.scale": float(config.attention_multiplier),
        "embedding_scale": float(config.embedding_multiplier),
        "residual_scale": float(config.residual_multiplier),
        "logit_scale": float(config.logits_scaling),
    }


def _phi3(config: Any) -> Keys:
    parameters = config.rope_parameters
    head_dim = config.hidden_size // config.num_attention_heads
    original = config.original_max_position_embeddings
    keys = {
        "attention.sliding_window": config.sliding_window or 0,
        "rope.dimension_count": int(parameters.get("partial_rotary_factor", 1.0) * head_dim),
        "rope.scaling.original_context_length": original,
    }
    if parameters["rope_type"] == "longrope":
        growth = math.log(config.max_position_embeddings / original) / math.log(original)
        keys["rope.scaling.attn_factor"] = math.sqrt(1 + growth)
    return keys


def _experts(config: Any) -> Keys:
    count = getattr(config, "num_experts", None) or config.num_local_experts
    return {"expert_count": count, "expert_used_count": config.num_experts_per_tok}


def _routed(config: Any) -> Keys:
    """Of experts behind dense layers; what is not in a config is not written."""
    return {
        "expert_count": config.n_routed_experts,
        "expert_used_count": config.num_experts_per_tok,
        "expert_shared_count": config.n_shared_experts,
        "expert_feed_forward_length": config.moe_intermediate_size,
        "expert_weights_scale": float(config.routed_scaling_factor),
        "expert_weights_norm": config.norm_topk_prob or None,
        "expert_group_count": config.n_group,
        "expert_group_used_count": config.topk_group,
        "leading_dense_block_count": config.first_k_dense_replace,
    }


def _glm_moe(config: Any) -> Keys:
    """Layers that predict further tokens are counted among all."""
    predicting = config.num_nextn_predict_layers
    return {
        **_glm(config),
        **_routed(config),
        "expert_gating_func": SIGMOID,
        "block_count": config.num_hidden_layers + predicting,
        "nextn_predict_layers": predicting,
    }


def _ernie_moe(config: Any) -> Keys:
    return {
        "expert_count": config.moe_num_experts,
        "expert_used_count": config.moe_k,
        "expert_shared_count": config.moe_num_shared_experts,
        "expert_feed_forward_length": config.moe_intermediate_size,
        "expert_shared_feed_forward_length": config.moe_intermediate_size
        * config.moe_num_shared_experts,
        "leading_dense_block_count": config.moe_layer_start_index,
        "interleave_moe_layer_step": config.moe_layer_interval,
    }


def _latents(config: Any) -> Keys:
    query = config.qk_nope_head_dim + config.qk_rope_head_dim
    return {
        "attention.q_lora_rank": config.q_lora_rank,
        "attention.kv_lora_rank": config.kv_lora_rank,
        "attention.key_length": query,
        "rope.dimension_count": config.qk_rope_head_dim,
    }


def _minicpm3(config: Any) -> Keys:
    """The file has nothing of values: their size is that of a share of the stream."""
    return {**_latents(config), "attention.value_length": None, "rope.scaling.type": None}


def _deepseek(config: Any) -> Keys:
    """Latents as the one head that all queries share; what is made of them, under other keys."""
    heads, rank = _latents(config), config.kv_lora_rank
    weight = config.rope_parameters.get("mscale_all_dim")
    return {
        **heads,
        "attention.head_count_kv": 1,
        "attention.key_length": rank + config.qk_rope_head_dim,
        "attention.value_length": rank,
        "attention.key_length_mla": heads["attention.key_length"],
        "attention.value_length_mla": config.v_head_dim,
        "rope.scaling.yarn_log_multiplier": None if weight is None else 0.1 * weight,
        **_routed(config),
        "expert_gating_func": SIGMOID if config.model_type == "deepseek_v3" else None,
    }


def _gpt_oss(config: Any) -> Keys:
    own = {"expert_feed_forward_length": config.intermediate_size}
    return {**_window(config), **_experts(config), **own}


def _qwen_experts(config: Any) -> Keys:
    return {
        **_experts(config),
        "expert_feed_forward_length": config.moe_intermediate_size,
        "expert_shared_feed_forward_length": getattr(
            config, "shared_expert_intermediate_size", None
        ),
    }


def _stablelm(config: Any) -> Keys:
    return {**_glm(config), "attention.layer_norm_epsilon": config.layer_norm_eps}


def _falcon(config: Any) -> Keys:
    epsilon = config.layer_norm_epsilon
    return {"attention.key_length": None, "attention.layer_norm_epsilon": epsilon}


def _gpt_neox(config: Any) -> Keys:
    return {**_stablelm(config), "use_parallel_residual": config.use_parallel_residual}


def _command_r(config: Any) -> Keys:
    return {
        "attention.layer_norm_epsilon": config.layer_norm_eps,
        "logit_scale": config.logit_scale,
        "rope.scaling.type": "none",
    }


_OWN_KEYS: Mapping[str, Callable[[Any], Keys]] = {
    "cohere": _command_r,
    "cohere2": _cohere2,
    "deepseek_v2": _deepseek,
    "deepseek_v3": _deepseek,
    "ernie4_5_moe": _ernie_moe,
    "exaone4": _window_and_layers,
    "falcon": _falcon,
    "gemma2": _gemma2,
    "gemma3_text": _gemma3,
    "glm": _glm,
    "glm4": _glm,
    "glm4_moe": _glm_moe,
    "gpt_neox": _gpt_neox,
    "gpt_oss": _gpt_oss,
    "granite": _granite,
    "granitemoe": lambda config: {**_granite(config), **_experts(config)},
    "minicpm3": _minicpm3,
    "mixtral": _experts,
    "olmo": lambda config: {"attention.layer_norm_epsilon": 1e-5},
    "olmo3": _window_and_layers,
    "olmoe": _experts,
    "phi": _stablelm,
    "phi3": _phi3,
    "qwen2_moe": _qwen_experts,
    "qwen3_moe": _qwen_experts,
    "stablelm": _stablelm,
    "starcoder2": lambda config: {"attention.layer_norm_epsilon": config.norm_epsilon},
}
