"""Shapes of models as a table of observations gives them: counts of layers and sizes of heads.

The fields: `layers`, `kv_heads` (one number, or one for each layer), `head_dim`,
`global_head_dim` and `global_kv_heads` (full layers beside windows), `kv_lora_rank`,
`qk_rope_head_dim`, `index_head_dim` (latent attention), `heads` (of queries),
`sliding_window`, `layer_pattern` (how many layers of each kind, or a list with one word a layer),
`linear` and `mamba2` (recurrent layers), `dtype`, `encoder`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from pagoda.errors import ModelError
from pagoda.models.config import ModelConfig
from pagoda.planning.architecture import Architecture, read_architecture
from pagoda.planning.fields import per_layer
from pagoda.planning.patterns import NOTHING, STATE, WORDS

_LINEAR = {
    "n_k": "linear_num_key_heads",
    "n_v": "linear_num_value_heads",
    "dk": "linear_key_head_dim",
    "dv": "linear_value_head_dim",
    "ssm_dtype": "mamba_ssm_dtype",
}
_MAMBA2 = {
    "mamba_n_heads": (
        "n_heads",
        "num_heads",
        "heads",
        "nheads",
        "mamba_n_heads",
        "mamba_num_heads",
    ),
    "mamba_d_head": (
        "head_dim",
        "d_head",
        "headdim",
        "head_size",
        "mamba_d_head",
        "mamba_head_dim",
    ),
    "mamba_d_state": (
        "d_state",
        "state_size",
        "ssm_state_size",
        "state",
        "n_state",
        "mamba_d_state",
    ),
    "mamba_n_groups": ("n_groups", "ngroups", "groups", "num_groups", "mamba_n_groups"),
    "mamba_ssm_dtype": ("ssm_dtype", "state_dtype", "mamba_ssm_dtype"),
}
_MAMBA2_NEEDED = ("mamba_n_heads", "mamba_d_head", "mamba_d_state")
_CONVOLUTION = ("conv", "d_conv", "conv_kernel", "conv_kernel_size", "mamba_d_conv")


def read_shape(record: Mapping[str, Any], name: str) -> Architecture:
    """The architecture of one record; `ModelError` for a field that is missing or odd."""
    given = {key: value for key, value in record.items() if value is not None}
    shape = ModelConfig(given, f"{name}.")
    encoder = shape.section("encoder")
    num_layers = _num_layers(shape)
    is_plain = shape.optional_integer("kv_lora_rank") is None and _has_attention(shape)
    kv_heads = per_layer(shape, "kv_heads", num_layers, default=None if is_plain else 1)
    if is_plain:
        shape.integer("head_dim")
    values: dict[str, Any] = {
        "model_type": _model_type(shape, encoder is not None),
        "num_hidden_layers": num_layers,
        "num_attention_heads": shape.optional_integer("heads") or math.lcm(*kv_heads),
        "num_key_value_heads": list(kv_heads),
        "head_dim": shape.optional_integer("head_dim"),
        "global_head_dim": shape.optional_integer("global_head_dim"),
        "num_global_key_value_heads": shape.optional_integer("global_kv_heads"),
        "kv_lora_rank": shape.optional_integer("kv_lora_rank"),
        "qk_rope_head_dim": shape.optional_integer("qk_rope_head_dim"),
        "index_head_dim": shape.optional_integer("index_head_dim"),
        "sliding_window": shape.optional_integer("sliding_window"),
        "attention_chunk_size": shape.optional_integer("attention_chunk_size")
        or shape.optional_integer("sliding_window"),
        "max_position_embeddings": shape.optional_integer("max_position_embeddings"),
        "torch_dtype": shape.string("dtype", default="bfloat16"),
        "layer_types": _layer_types(shape, num_layers),
        **_linear(shape),
        **_mamba2(shape),
    }
    if encoder is not None:
        values["num_hidden_layers"] = encoder.integer("decoder_self", default=num_layers)
        tokens = encoder.optional_integer("max_encoder_tokens_in_log")
        values["max_source_positions"] = tokens or encoder.optional_integer("max_encoder_tokens")
    try:
        return read_architecture(ModelConfig(values))
    except ModelError as error:
        raise ModelError(f"{name}.{error.field}", error.value, error.limit) from None


def _num_layers(shape: ModelConfig) -> int:
    """As it is said, or as many as are described one by one or in counts."""
    pattern = shape.values.get("layer_pattern")
    if shape.values.get("layers") is None and isinstance(pattern, Mapping):
        counts = shape.section("layer_pattern")
        assert counts is not None
        return sum(counts.integer(word, minimum=0) for word in counts.values)
    listed = next(
        (items for items in (pattern, shape.values.get("kv_heads")) if isinstance(items, list)), []
    )
    return shape.integer("layers", default=len(listed) or None)


def _model_type(shape: ModelConfig, has_encoder: bool) -> str:
    if has_encoder:
        return "whisper"
    if shape.section("linear") is not None:
        return "qwen3_next"
    sizes = _mamba2(shape)
    if all(sizes.get(name) is not None for name in _MAMBA2_NEEDED):
        return "mamba2"
    # A state whose size is not given: a printed block size tells how large a page was made for it.
    return "unnamed_windows" if _num_states(shape) == 0 else "unsized_state"


def _has_attention(shape: ModelConfig) -> bool:
    pattern = shape.values.get("layer_pattern")
    return not pattern or any(WORDS.get(word) not in (STATE, NOTHING) for word in pattern)


def _num_states(shape: ModelConfig) -> int:
    pattern = shape.values.get("layer_pattern") or ()
    return sum(1 for word in pattern if WORDS.get(word) == STATE)


def _layer_types(shape: ModelConfig, num_layers: int) -> list[str] | None:
    pattern = shape.values.get("layer_pattern")
    if not pattern or isinstance(pattern, list):
        return pattern or None
    counts = shape.section("layer_pattern")
    assert counts is not None
    total = {word: counts.integer(word, minimum=0) for word in counts.values}
    if sum(total.values()) != num_layers:
        limit = f"must add up to the {num_layers} layers"
        raise shape.error("layer_pattern", dict(total), limit)
    return _spread(total)


def _spread(counts: Mapping[str, int]) -> list[str]:
    """The words spread evenly, the rarest last in its stretch: as models alternate their layers."""
    places = [
        ((place + 1) / count, -count, word)
        for word, count in counts.items()
        for place in range(count)
    ]
    return [word for _, _, word in sorted(places)]


def _linear(shape: ModelConfig) -> dict[str, Any]:
    section = shape.section("linear")
    if section is None:
        return {}
    kernel = _first(section.values, _CONVOLUTION)
    found = {name: section.values.get(key) for key, name in _LINEAR.items()}
    return {"linear_conv_kernel_dim": kernel, **found}


def _mamba2(shape: ModelConfig) -> dict[str, Any]:
    section = shape.section("mamba2")
    if section is None:
        return {}
    found = {name: _first(section.values, keys) for name, keys in _MAMBA2.items()}
    return {"mamba_d_conv": _first(section.values, _CONVOLUTION), **found}


def _first(values: Mapping[str, Any], names: Sequence[str]) -> Any:
    return next((values[name] for name in names if values.get(name) is not None), None)
