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


_EXPERT_KEYS = {
    "num_experts": Key(EXPERTS, is_needed=True),
    "num_experts_per_tok": Key("expert_used_count", is_needed=True),
}
_OWN_SIZE = {"moe_intermediate_size": Key(_INNER)}
_SOFTMAX, _SOFTMAX_OF_CHOSEN = {"expert_gating_func": 1}, {"expert_gating_func": 3}
_NORMALISED = {**_SOFTMAX, "expert_weights_norm": True}
_NOT_NORMALISED = {**_SOFTMAX, "expert_weights_norm": False}
_FINAL_CAP = "final_logit_softcapping"
_SCORE_CAP = "attn_logit_softcapping"
_GLM_BIASES = ("attn_q", "attn_qkv")

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
    "chatglm": GGUFArchitecture("GlmForCausalLM", rotates_partly=True, attention_bias=_GLM_BIASES),
    "cohere2": GGUFArchitecture(
        "Cohere2ForCausalLM",
        norm_eps={"layer_norm_eps": "attention.layer_norm_epsilon"},
        keys={"logit_scale": Key("logit_scale", is_needed=True)},
        window=_WINDOW._replace(is_needed=True),
        period=4,
    ),
    "exaone4": GGUFArchitecture("Exaone4ForCausalLM", period=4),
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
    "glm4": GGUFArchitecture("Glm4ForCausalLM", rotates_partly=True, attention_bias=_GLM_BIASES),
    "gpt-oss": GGUFArchitecture(
        "GptOssForCausalLM",
        keys={**_EXPERT_KEYS, "intermediate_size": Key(_INNER, is_needed=True)},
        window=_WINDOW._replace(is_needed=True),
        period=2,
        required=_SOFTMAX_OF_CHOSEN,
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
    "olmo2": GGUFArchitecture("Olmo2ForCausalLM", windowed="Olmo3ForCausalLM", period=4),
    "olmoe": GGUFArchitecture("OlmoeForCausalLM", keys=_EXPERT_KEYS, required=_NOT_NORMALISED),
    "phi3": GGUFArchitecture("Phi3ForCausalLM", rotates_partly=True),
    "qwen2": GGUFArchitecture("Qwen2ForCausalLM"),
    "qwen2moe": GGUFArchitecture(
        "Qwen2MoeForCausalLM",
        keys={
            **_EXPERT_KEYS,
            **_OWN_SIZE,
            "shared_expert_intermediate_size": Key("expert_shared_feed_forward_length"),
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
    "smollm3": GGUFArchitecture("SmolLM3ForCausalLM"),
}
"""By llama.cpp's name. Source: its converters' keys and its `load_arch_hparams`."""
