"""What llama.cpp's architectures are, one row each: their keys, and what no key tells."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

from pagoda.models.config import ModelConfig


class Key(NamedTuple):
    """Where a field of a config lies in the metadata."""

    name: str
    default: Any = None
    """What a missing key means, and a 0, which llama.cpp takes for one that was not given."""
    is_needed: bool = False


_WINDOW = Key("attention.sliding_window")
EXPERTS = "expert_count"
_INNER = "expert_feed_forward_length"
_SHARED = "expert_shared_feed_forward_length"


def _nothing(config: ModelConfig) -> Mapping[str, Any]:
    return {}


@dataclass(frozen=True, slots=True)
class GGUFArchitecture:
    """One value of `general.architecture`."""

    name: str
    """In the Hugging Face naming."""
    windowed: str = ""
    """The same for a file with a sliding window; "": no other one."""
    norm_eps: Mapping[str, str] = field(
        default_factory=lambda: {"rms_norm_eps": "attention.layer_norm_rms_epsilon"}
    )
    keys: Mapping[str, Key] = field(default_factory=dict)
    """Fields that not all architectures have."""
    window: Key = _WINDOW
    """The sliding window."""
    period: int | None = None
    """Layers from one that attends to all to the next, where the file does not say.

    None: layers do not differ.
    """
    rotates_partly: bool = False
    """Whether `rope.dimension_count` may be less than a head."""
    is_latent: bool = False
    """Whether attention keeps latents."""
    original_length: str = "rope.scaling.original_context_length"
    """The key of the length before an extension, where the file has not this one."""
    attention_bias: tuple[str, ...] = ("attn_output",)
    """Tensors whose biases tell that attention has some."""
    required: Mapping[str, Any] = field(default_factory=dict)
    """Features that are not covered, with the value that means they are not in use."""
    derive: Callable[[ModelConfig], Mapping[str, Any]] = _nothing
    """Fields that llama.cpp takes from others, or that are what they are in every file."""
    with_experts: GGUFArchitecture | None = None
    """What it is in a file with experts, if that is another one."""


def _query_scalar(config: ModelConfig, *, largest: int) -> Mapping[str, Any]:
    """Scores are divided by √head_dim; in the model with `largest` layers by √(hidden / heads)."""
    width = config.integer("hidden_size") // config.integer("num_attention_heads")
    is_largest = config.integer("num_hidden_layers") == largest
    return {"query_pre_attn_scalar": width if is_largest else config.integer("head_dim")}


def _attention_multiplier(config: ModelConfig) -> Mapping[str, Any]:
    """Granite's scale where the file gives none."""
    given = config.optional_number("attention_multiplier")
    return {"attention_multiplier": given or config.integer("head_dim") ** -0.5}


def _qwen_experts(config: ModelConfig, *, are_normalised: bool) -> Mapping[str, Any]:
    """Experts have shares of a dense layer where the file gives no size of their own."""
    inner = config.optional_integer("moe_intermediate_size")
    if inner is None:
        inner = config.integer("intermediate_size") // config.integer("num_experts_per_tok")
    return {"moe_intermediate_size": inner, "norm_topk_prob": are_normalised}


def _shared_expert(config: ModelConfig) -> Mapping[str, Any]:
    """Qwen2-MoE's, as large as a dense layer where the file gives no size."""
    shared = config.optional_integer("shared_expert_intermediate_size")
    shared = config.integer("intermediate_size") if shared is None else shared
    return {
        "shared_expert_intermediate_size": shared,
        **_qwen_experts(config, are_normalised=False),
    }


def _whole_bounds(config: ModelConfig) -> Mapping[str, Any]:
    """gpt-oss was made with a ramp of yarn whose bounds are not rounded, which no key says."""
    return {"rope_parameters": {**config.values["rope_parameters"], "truncate": False}}


def _without_predicting(config: ModelConfig) -> Mapping[str, Any]:
    """Layers that predict further tokens are the last ones, and counted among all."""
    predicting = config.integer("num_nextn_predict_layers", default=0, minimum=0)
    return {"num_hidden_layers": config.integer("num_hidden_layers") - predicting}


def _deepseek(config: ModelConfig) -> Mapping[str, Any]:
    """V2 scores experts by softmax, V3 by a sigmoid; a file with groups chooses by them."""
    scoring = config.integer("expert_gating_func", default=_SOFTMAX)
    if scoring not in (_SOFTMAX, _SIGMOID):
        raise config.unsupported("expert_gating_func", scoring, "only 1 and 2 are covered")
    own = {**_without_predicting(config), **_yarn_weights(config)}
    if scoring == _SIGMOID:
        return {**own, "architectures": ["DeepseekV3ForCausalLM"]}
    is_grouped = config.integer("n_group") > 1
    return {**own, "topk_method": "group_limited_greedy" if is_grouped else "greedy"}


def _yarn_weights(config: ModelConfig) -> Mapping[str, Any]:
    """Files have a tenth of `mscale_all_dim` in float32, and `mscale` is the same.

    A file with yarn has to say it: without it llama.cpp scales scores twice.
    """
    parameters = config.values["rope_parameters"]
    if parameters["rope_type"] != "yarn":
        return {}
    weight = float(f"{10 * config.number('yarn_log_multiplier'):.6g}")
    return {"rope_parameters": {**parameters, "mscale": weight, "mscale_all_dim": weight}}


def _stablelm(config: ModelConfig) -> Mapping[str, Any]:
    return {
        "use_qkv_bias": config.boolean("attention_bias", default=False),
        "qk_layernorm": config.boolean("use_qk_norm", default=False),
    }


def _falcon(config: ModelConfig) -> Mapping[str, Any]:
    """Files have one KV head or some, and a norm for each half of a layer where there are two."""
    has_two = config.boolean("has_two_norms", default=False)
    return {
        "new_decoder_architecture": True,
        "num_kv_heads": config.values["num_key_value_heads"],
        "num_ln_in_parallel_attn": 1 + has_two,
        "ffn_hidden_size": config.values["intermediate_size"],
        "bias": config.boolean("attention_bias", default=False),
    }


def _gpt_neox(config: ModelConfig) -> Mapping[str, Any]:
    return {
        "use_parallel_residual": config.boolean("is_parallel", default=True),
        "rotary_pct": config.values["partial_rotary_factor"],
        "rotary_emb_base": config.values["rope_theta"],
    }


def _starcoder2(config: ModelConfig) -> Mapping[str, Any]:
    return {"use_bias": config.boolean("attention_bias", default=False)}


def _ernie(config: ModelConfig) -> Mapping[str, Any]:
    return {"use_bias": config.boolean("attention_bias", default=False)}


def _ernie_experts(config: ModelConfig) -> Mapping[str, Any]:
    """Raises `ModelError` for shared experts that are not as wide as so many others."""
    inner = config.integer("moe_intermediate_size")
    width = inner * config.integer("moe_num_shared_experts", minimum=0)
    if config.optional_integer(_SHARED, minimum=0) not in (None, width):
        raise config.error(_SHARED, config.values[_SHARED], f"must be {width}, as of the others")
    return _ernie(config)


_EXPERT_KEYS = {
    "num_experts": Key(EXPERTS, is_needed=True),
    "num_experts_per_tok": Key("expert_used_count", is_needed=True),
}
_OWN_SIZE = {"moe_intermediate_size": Key(_INNER)}
_SOFTMAX, _SIGMOID, _SOFTMAX_OF_CHOSEN = 1, 2, 3
_NORMALISED = {"expert_gating_func": _SOFTMAX, "expert_weights_norm": True}
_NOT_NORMALISED = {"expert_gating_func": _SOFTMAX, "expert_weights_norm": False}
_ROUTED = {
    "n_routed_experts": Key(EXPERTS, is_needed=True),
    "num_experts_per_tok": Key("expert_used_count", is_needed=True),
    "moe_intermediate_size": Key(_INNER, is_needed=True),
    "n_shared_experts": Key("expert_shared_count", is_needed=True),
    "first_k_dense_replace": Key("leading_dense_block_count", 0),
    "norm_topk_prob": Key("expert_weights_norm", False),
    "routed_scaling_factor": Key("expert_weights_scale", 1.0),
    "n_group": Key("expert_group_count", 1),
    "topk_group": Key("expert_group_used_count", 1),
    "num_nextn_predict_layers": Key("nextn_predict_layers", 0),
}
"""Experts behind dense layers, some of them for every row."""
_RANKS = {
    "kv_lora_rank": Key("attention.kv_lora_rank", is_needed=True),
    "q_lora_rank": Key("attention.q_lora_rank"),
}
_FINAL_CAP = "final_logit_softcapping"
_SCORE_CAP = "attn_logit_softcapping"
_QKV_BIASES = ("attn_q", "attn_qkv")

_GRANITE = GGUFArchitecture(
    "GraniteForCausalLM",
    keys={
        "logits_scaling": Key("logit_scale", is_needed=True),
        "attention_multiplier": Key("attention.scale"),
        "embedding_multiplier": Key("embedding_scale"),
        "residual_multiplier": Key("residual_scale"),
    },
    required={"rope.scaling.finetuned": True},
    derive=_attention_multiplier,
)

GGUF_ARCHITECTURES: Mapping[str, GGUFArchitecture] = {
    "chatglm": GGUFArchitecture("GlmForCausalLM", rotates_partly=True, attention_bias=_QKV_BIASES),
    "cohere2": GGUFArchitecture(
        "Cohere2ForCausalLM",
        norm_eps={"layer_norm_eps": "attention.layer_norm_epsilon"},
        keys={"logit_scale": Key("logit_scale", is_needed=True)},
        window=_WINDOW._replace(is_needed=True),
        period=4,
    ),
    "command-r": GGUFArchitecture(
        "CohereForCausalLM",
        norm_eps={"layer_norm_eps": "attention.layer_norm_epsilon"},
        keys={"logit_scale": Key("logit_scale", is_needed=True)},
    ),
    "deepseek2": GGUFArchitecture(
        "DeepseekV2ForCausalLM",
        is_latent=True,
        keys={
            **_RANKS,
            **_ROUTED,
            "expert_gating_func": Key("expert_gating_func"),
            "yarn_log_multiplier": Key("rope.scaling.yarn_log_multiplier"),
        },
        derive=_deepseek,
    ),
    "ernie4_5": GGUFArchitecture("Ernie4_5ForCausalLM", derive=_ernie),
    "ernie4_5-moe": GGUFArchitecture(
        "Ernie4_5_MoeForCausalLM",
        keys={
            "moe_num_experts": Key(EXPERTS, is_needed=True),
            "moe_k": Key("expert_used_count", is_needed=True),
            "moe_intermediate_size": Key(_INNER, is_needed=True),
            "moe_num_shared_experts": Key("expert_shared_count", 0),
            "moe_layer_start_index": Key("leading_dense_block_count", 0),
            "moe_layer_interval": Key("interleave_moe_layer_step", is_needed=True),
            _SHARED: Key(_SHARED),
        },
        derive=_ernie_experts,
    ),
    "exaone4": GGUFArchitecture("Exaone4ForCausalLM", period=4),
    "falcon": GGUFArchitecture(
        "FalconForCausalLM",
        norm_eps={"layer_norm_epsilon": "attention.layer_norm_epsilon"},
        derive=_falcon,
    ),
    "gemma": GGUFArchitecture("GemmaForCausalLM"),
    "gemma2": GGUFArchitecture(
        "Gemma2ForCausalLM",
        keys={_SCORE_CAP: Key(_SCORE_CAP, 50.0), _FINAL_CAP: Key(_FINAL_CAP, 30.0)},
        window=_WINDOW._replace(default=4096),
        period=2,
        derive=partial(_query_scalar, largest=46),
    ),
    "gemma3": GGUFArchitecture(
        "Gemma3ForCausalLM",
        keys={
            _FINAL_CAP: Key(_FINAL_CAP),
            "rope_local_base_freq": Key("rope.freq_base_swa", 10_000.0),
        },
        period=6,
        derive=partial(_query_scalar, largest=62),
    ),
    "glm4": GGUFArchitecture("Glm4ForCausalLM", rotates_partly=True, attention_bias=_QKV_BIASES),
    "glm4moe": GGUFArchitecture(
        "Glm4MoeForCausalLM",
        keys=_ROUTED,
        rotates_partly=True,
        attention_bias=_QKV_BIASES,
        required={"expert_gating_func": _SIGMOID},
        derive=_without_predicting,
    ),
    "gptneox": GGUFArchitecture(
        "GPTNeoXForCausalLM",
        norm_eps={"layer_norm_eps": "attention.layer_norm_epsilon"},
        keys={"is_parallel": Key("use_parallel_residual", False, is_needed=True)},
        rotates_partly=True,
        derive=_gpt_neox,
    ),
    "gpt-oss": GGUFArchitecture(
        "GptOssForCausalLM",
        keys={**_EXPERT_KEYS, "intermediate_size": Key(_INNER, is_needed=True)},
        window=_WINDOW._replace(is_needed=True),
        period=2,
        required={"expert_gating_func": _SOFTMAX_OF_CHOSEN},
        derive=_whole_bounds,
    ),
    "granite": _GRANITE,
    "granitemoe": replace(
        _GRANITE,
        name="GraniteMoeForCausalLM",
        keys={**_GRANITE.keys, **_EXPERT_KEYS},
        required={**_GRANITE.required, **_NORMALISED},
    ),
    "llama": GGUFArchitecture(
        "LlamaForCausalLM",
        windowed="MistralForCausalLM",
        with_experts=GGUFArchitecture(
            "MixtralForCausalLM", keys=_EXPERT_KEYS, required=_NORMALISED
        ),
    ),
    "minicpm3": GGUFArchitecture(
        "MiniCPM3ForCausalLM",
        is_latent=True,
        original_length="context_length",
        keys={**_RANKS, "q_lora_rank": _RANKS["q_lora_rank"]._replace(is_needed=True)},
    ),
    "olmo": GGUFArchitecture(
        "OlmoForCausalLM", norm_eps={"layer_norm_eps": "attention.layer_norm_epsilon"}
    ),
    "olmo2": GGUFArchitecture("Olmo2ForCausalLM", windowed="Olmo3ForCausalLM", period=4),
    "olmoe": GGUFArchitecture("OlmoeForCausalLM", keys=_EXPERT_KEYS, required=_NOT_NORMALISED),
    "phi2": GGUFArchitecture(
        "PhiForCausalLM",
        norm_eps={"layer_norm_eps": "attention.layer_norm_epsilon"},
        rotates_partly=True,
    ),
    "phi3": GGUFArchitecture("Phi3ForCausalLM", rotates_partly=True),
    "qwen2": GGUFArchitecture("Qwen2ForCausalLM"),
    "qwen2moe": GGUFArchitecture(
        "Qwen2MoeForCausalLM",
        keys={
            **_EXPERT_KEYS,
            **_OWN_SIZE,
            "shared_expert_intermediate_size": Key(_SHARED),
        },
        required=_NOT_NORMALISED,
        derive=_shared_expert,
    ),
    "qwen3": GGUFArchitecture("Qwen3ForCausalLM"),
    "qwen3moe": GGUFArchitecture(
        "Qwen3MoeForCausalLM",
        keys={**_EXPERT_KEYS, **_OWN_SIZE},
        required=_NORMALISED,
        derive=partial(_qwen_experts, are_normalised=True),
    ),
    "seed_oss": GGUFArchitecture("SeedOssForCausalLM", attention_bias=_QKV_BIASES),
    "smollm3": GGUFArchitecture("SmolLM3ForCausalLM"),
    "stablelm": GGUFArchitecture(
        "StableLmForCausalLM",
        norm_eps={"layer_norm_eps": "attention.layer_norm_epsilon"},
        rotates_partly=True,
        attention_bias=_QKV_BIASES,
        derive=_stablelm,
    ),
    "starcoder2": GGUFArchitecture(
        "Starcoder2ForCausalLM",
        norm_eps={"norm_epsilon": "attention.layer_norm_epsilon"},
        derive=_starcoder2,
    ),
}
"""By llama.cpp's name. Source: its converters' keys and its `load_arch_hparams`."""
