"""Which kind of layer comes where: one rule a family.

A rule turns a config into one word a layer. `layer_types` speaks for itself and goes first; a rule
says what holds where the field is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from pagoda.models.config import ModelConfig

FULL, SLIDING, CHUNKED, STATE, CROSS = "full", "sliding", "chunked", "state", "cross"
BOTH, NOTHING, SELF_AND_CROSS = "full+state", "nothing", "full+cross"

WORDS = MappingProxyType(
    {
        "full_attention": FULL,
        "attention": FULL,
        "full": FULL,
        "gqa": FULL,
        "mla": FULL,
        "global": FULL,
        "global_attention": FULL,
        "sliding_attention": SLIDING,
        "sliding_window": SLIDING,
        "sliding": SLIDING,
        "local": SLIDING,
        "local_attention": SLIDING,
        "sliding_window_attention": SLIDING,
        "swa": SLIDING,
        "chunked_attention": CHUNKED,
        "chunked": CHUNKED,
        "linear_attention": STATE,
        "linear": STATE,
        "mamba": STATE,
        "mamba1": STATE,
        "mamba2": STATE,
        "ssm": STATE,
        "kda": STATE,
        "gdn": STATE,
        "gated_delta_net": STATE,
        "gated_deltanet": STATE,
        "conv": STATE,
        "recurrent": STATE,
        "hybrid": BOTH,
        "cross_attention": CROSS,
        "mlp": NOTHING,
        "moe": NOTHING,
        "shared_kv": NOTHING,
        "none": NOTHING,
        "no_op": NOTHING,
        "ffn": NOTHING,
    }
)
"""The words of `layer_types` and the like."""

Rule = Callable[[ModelConfig, int], list[str]]


@dataclass(frozen=True, slots=True)
class Family:
    """What is particular about a `model_type`."""

    rule: Rule
    state: str | None = None
    """Which of `pagoda.planning.states` its recurrent layers keep."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Fields that its configs leave out."""


def all_full(config: ModelConfig, num_layers: int) -> list[str]:
    return [FULL] * num_layers


def window_everywhere(config: ModelConfig, num_layers: int) -> list[str]:
    """Sliding in all layers if there is a window, as in Mistral 7B v0.1 and Phi-3."""
    window = config.optional_integer("sliding_window")
    return [FULL if window is None else SLIDING] * num_layers


def window_if_asked(config: ModelConfig, num_layers: int) -> list[str]:
    """Qwen: a window is used in the upper layers, and only if `use_sliding_window` says so."""
    if not config.boolean("use_sliding_window", default=False):
        return [FULL] * num_layers
    first = config.integer("max_window_layers", default=num_layers, minimum=0)
    return [FULL if layer < first else SLIDING for layer in range(num_layers)]


def every_nth_full(default: int, field_name: str, others: str) -> Rule:
    """The last layer of each `field_name` is full, the rest are `others`."""

    def rule(config: ModelConfig, num_layers: int) -> list[str]:
        n = config.integer(field_name, default=default)
        return [FULL if (layer + 1) % n == 0 else others for layer in range(num_layers)]

    return rule


def llama4(config: ModelConfig, num_layers: int) -> list[str]:
    """Layers without rotary positions see everything, the others their chunk."""
    listed = config.items("no_rope_layers", int, length=num_layers)
    if listed:
        return [CHUNKED if rotates else FULL for rotates in listed]
    return every_nth_full(4, "no_rope_layer_interval", CHUNKED)(config, num_layers)


def jamba(config: ModelConfig, num_layers: int) -> list[str]:
    period = config.integer("attn_layer_period", default=8)
    offset = config.integer("attn_layer_offset", default=4, minimum=0)
    return [FULL if layer % period == offset else STATE for layer in range(num_layers)]


def named_full(field_name: str) -> Rule:
    """`field_name` lists the indices of the layers with attention."""

    def rule(config: ModelConfig, num_layers: int) -> list[str]:
        listed = indices(config, field_name)
        return [FULL if layer in listed else STATE for layer in range(num_layers)]

    return rule


def nemotron_h(config: ModelConfig, num_layers: int) -> list[str]:
    """A letter a layer: M Mamba-2, * attention, - MLP, E experts."""
    letters = {"M": STATE, "*": FULL, "-": NOTHING, "E": NOTHING}
    pattern = config.string("hybrid_override_pattern")
    if len(pattern) != num_layers or set(pattern) - set(letters):
        limit = f"must be {num_layers} letters of {' '.join(letters)}"
        raise config.error("hybrid_override_pattern", pattern, limit)
    return [letters[letter] for letter in pattern]


def kimi_linear(config: ModelConfig, num_layers: int) -> list[str]:
    section = config.section("linear_attn_config")
    if section is None:
        raise config.missing("linear_attn_config.full_attn_layers")
    full = indices(section, "full_attn_layers")  # counted from 1
    return [FULL if layer + 1 in full else STATE for layer in range(num_layers)]


def minimax(config: ModelConfig, num_layers: int) -> list[str]:
    kinds = config.items("attn_type_list", int, length=num_layers)
    if kinds is None:
        raise config.missing("attn_type_list")
    return [FULL if kind == 1 else STATE for kind in kinds]


def mimo(config: ModelConfig, num_layers: int) -> list[str]:
    kinds = config.items("hybrid_layer_pattern", int, length=num_layers)
    if kinds is None:
        raise config.missing("hybrid_layer_pattern")
    return [SLIDING if kind == 1 else FULL for kind in kinds]


def exaone4(config: ModelConfig, num_layers: int) -> list[str]:
    """`sliding_window_pattern` spells the layers, as in LLLG."""
    pattern = config.values.get("sliding_window_pattern")
    if config.optional_integer("sliding_window") is None or not pattern:
        return [FULL] * num_layers
    if type(pattern) is int:
        return every_nth_full(4, "sliding_window_pattern", SLIDING)(config, num_layers)
    spelled = config.string("sliding_window_pattern")
    letters = [spelled[layer % len(spelled)] for layer in range(num_layers)]
    letters[-1] = "G"
    return [FULL if letter == "G" else SLIDING for letter in letters]


def all_state(config: ModelConfig, num_layers: int) -> list[str]:
    return [STATE] * num_layers


def all_both(config: ModelConfig, num_layers: int) -> list[str]:
    return [BOTH] * num_layers


def self_and_cross(config: ModelConfig, num_layers: int) -> list[str]:
    return [SELF_AND_CROSS] * num_layers


def mllama(config: ModelConfig, num_layers: int) -> list[str]:
    cross = indices(config, "cross_attention_layers")
    return [CROSS if layer in cross else FULL for layer in range(num_layers)]


def indices(config: ModelConfig, name: str) -> frozenset[int]:
    """The layers that a list names; the field must be there."""
    if config.items(name, int, length=0) is None:
        raise config.missing(name)
    return frozenset(config.values[name])


def layer_types(config: ModelConfig, num_layers: int, field_name: str) -> list[str] | None:
    """The words of a list with one a layer, or None where the config has none."""
    listed = config.items(field_name, str, length=num_layers)
    if listed is None:
        return None
    for word in listed:
        if word not in WORDS:
            raise config.error(field_name, word, f"known are {', '.join(WORDS)}")
    return [WORDS[word] for word in listed]


_PLAIN = Family(all_full)
_WINDOWED = Family(window_everywhere)
_QWEN = Family(window_if_asked)
_GEMMA4 = Family(every_nth_full(6, "sliding_window_pattern", SLIDING))
_GEMMA3N = Family(every_nth_full(5, "sliding_window_pattern", SLIDING))
_DELTA = Family(every_nth_full(4, "full_attention_interval", STATE), "delta")
_MAMBA2 = Family(all_state, "mamba2")

FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        **dict.fromkeys(
            (
                "opt", "gpt2", "gptj", "gpt_bigcode", "bloom", "mpt", "falcon",
                "phi", "olmo", "granitemoeshared",
                "cohere", "stablelm", "internlm", "internlm2", "internlm3",
                "baichuan", "chatglm", "glm4_moe", "glm4v_text", "glm4v_moe_text",
                "deepseek", "deepseek_v2", "deepseek_v3", "deepseek_v32", "kimi_k2", "kimi_k25",
                "glm_moe_dsa", "glm4_moe_lite", "longcat_flash", "pangu_ultra_moe", "axk1",
                "minicpm", "minicpm3", "dbrx", "grok-1", "persimmon", "nemotron", "exaone",
                "smollm", "ernie4_5_moe", "hunyuan_v1_dense",
                "hunyuan_v1_moe", "minimax_m2", "apertus", "arcee", "solar", "orion",
                "phimoe", "qwen", "decilm", "deci", "nemotron-nas", "nemotron_nas",
                "bailing_moe", "dots1",
                "mistral3", "openelm", "nanochat", "ouro", "flex_olmo", "hrm_text",
            ),
            _PLAIN,
        ),
        **dict.fromkeys(
            ("unnamed_windows", "ministral", "ministral3",
             "phi3small", "phi4mm", "afmoe", "step3p5", "rnj1", "arctic"),
            _WINDOWED,
        ),
        **dict.fromkeys(
            ("qwen2_vl_text", "qwen2_vl",
             "qwen2_5_vl_text", "qwen2_5_vl", "qwen3_vl_text", "qwen3_vl_moe_text",
             "qwen2_audio", "qwen3_omni_moe_text"),
            _QWEN,
        ),
        **dict.fromkeys(("gemma3n_text", "gemma3n"), _GEMMA3N),
        **dict.fromkeys(("gemma4_text", "gemma4", "gemma4_unified_text"), _GEMMA4),
        "cohere2_moe": Family(every_nth_full(4, "sliding_window_pattern", SLIDING)),
        **dict.fromkeys(
            ("llama4_text", "llama4"), Family(llama4, defaults={"attention_chunk_size": 8192})
        ),
        "exaone_moe": Family(exaone4),
        **dict.fromkeys(("mimo_v2_flash", "mimo_v2"), Family(mimo)),
        "jamba": Family(jamba, "mamba1"),
        "bamba": Family(named_full("attn_layer_indices"), "mamba2"),
        "granitemoehybrid": Family(named_full("attn_layer_indices"), "mamba2"),
        **dict.fromkeys(("nemotron_h", "nemotronh"), Family(nemotron_h, "mamba2")),
        "falcon_h1": Family(all_both, "mamba2"),
        "zamba2": Family(all_state, "mamba2"),
        **dict.fromkeys(
            ("qwen3_next", "qwen3_5_text", "qwen3_5", "qwen3_5_moe_text", "qwen3_5_moe"), _DELTA
        ),
        "olmo_hybrid": _DELTA,
        "kimi_linear": Family(kimi_linear, "kda"),
        **dict.fromkeys(("minimax", "minimax_text_01", "minimax_m1"), Family(minimax, "lightning")),
        **dict.fromkeys(("lfm2", "lfm2_moe"), Family(named_full("full_attn_idxs"), "short_conv")),
        "mamba": Family(all_state, "mamba1"),
        "falcon_mamba": Family(all_state, "mamba1"),
        "mamba2": _MAMBA2,
        "unsized_state": Family(all_state, "unsized"),
        **dict.fromkeys(("mllama_text_model", "mllama"), Family(mllama)),
        "whisper": Family(self_and_cross),
    }
)  # fmt: skip
"""By `model_type` of the language part: those that Pagoda does not run, or
not in every form, as `cohere` with norms of its heads.

What it runs is read by its engine's own rows, `ARCHITECTURES` in `pagoda.models.registry`.
"""
