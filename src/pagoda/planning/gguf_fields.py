"""The metadata of a GGUF file under the names of a `config.json`.

A file that Pagoda runs is read by its engine's own reader (`pagoda.models.gguf_config`), which
refuses the others. A plan for another engine needs shapes alone, so there are rules for those here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from pagoda.errors import ModelError, UnsupportedModelError
from pagoda.models.config import ModelConfig
from pagoda.models.gguf import GGUFFile
from pagoda.models.gguf_config import num_tokens, read_gguf_config
from pagoda.models.registry import ARCHITECTURES

_MODEL_TYPES = MappingProxyType(
    {
        "qwen2moe": "qwen2_moe",
        "qwen3moe": "qwen3_moe",
        "gemma3": "gemma3_text",
        "gemma3n": "gemma3n_text",
        "deepseek2": "deepseek_v2",
        "gpt-oss": "gpt_oss",
        "command-r": "cohere",
        "phi2": "phi",
        "phi3": "phi3",
        "gptneox": "gpt_neox",
        "glm4moe": "glm4_moe",
        "llama4": "llama4_text",
    }
)
_FIELDS = MappingProxyType(
    {
        "num_hidden_layers": "block_count",
        "hidden_size": "embedding_length",
        "intermediate_size": "feed_forward_length",
        "max_position_embeddings": "context_length",
        "num_attention_heads": "attention.head_count",
        "num_key_value_heads": "attention.head_count_kv",
        "head_dim": "attention.key_length",
        "num_kv_shared_layers": "attention.shared_kv_layers",
        "sliding_window": "attention.sliding_window",
        "attention_chunk_size": "attention.chunk_size",
        "kv_lora_rank": "attention.kv_lora_rank",
        "q_lora_rank": "attention.q_lora_rank",
        "num_experts": "expert_count",
        "num_experts_per_tok": "expert_used_count",
        "moe_intermediate_size": "expert_feed_forward_length",
        "n_shared_experts": "expert_shared_count",
        "first_k_dense_replace": "leading_dense_block_count",
        "mamba_d_conv": "ssm.conv_kernel",
        "mamba_d_state": "ssm.state_size",
        "mamba_intermediate": "ssm.inner_size",
    }
)
_STATES_READ = ("jamba",)
"""Architectures with a state whose keys tell which layers keep it, and how large it is."""
_NEEDED = ("num_hidden_layers", "hidden_size")


@dataclass(frozen=True, slots=True)
class GGUFReading:
    """What a file says of its model."""

    config: ModelConfig
    refused_by_pagoda: UnsupportedModelError | None
    """What Pagoda's engine says of it, where it does not run it."""


def read_gguf(file: GGUFFile) -> GGUFReading:
    """The config of a file. Raises `ModelError` for what it lacks, and as `config_of_gguf`."""
    try:
        config = read_gguf_config(file)
    except UnsupportedModelError as refused:
        is_tied = "output.weight" not in file.tensors
        values = config_of_gguf(file.metadata, num_tokens(file), is_tied)
        return GGUFReading(ModelConfig(values), refused)
    [architecture] = config.values["architectures"]
    model_type = ARCHITECTURES[architecture].model_type
    return GGUFReading(ModelConfig({"model_type": model_type, **config.values}), None)


def config_of_gguf(metadata: Mapping[str, Any], vocab_size: int, is_tied: bool) -> dict[str, Any]:
    """The fields of a config.

    Raises `ModelError` for a key that is missing, `UnsupportedModelError` for an architecture with
    recurrent layers that its file does not describe.
    """
    name = metadata.get("general.architecture")
    if not isinstance(name, str):
        raise ModelError("general.architecture", name, "the file does not name its architecture")
    if name not in _STATES_READ and any(key.startswith(f"{name}.ssm.") for key in metadata):
        limit = "its recurrent layers cannot be told from a GGUF file: give its config.json"
        raise UnsupportedModelError("general.architecture", name, limit)
    config: dict[str, Any] = {
        "model_type": _model_type(name, metadata),
        "vocab_size": vocab_size,
        "tie_word_embeddings": is_tied,
        "torch_dtype": "bfloat16",
    }
    for field, key in _FIELDS.items():
        value = metadata.get(f"{name}.{key}")
        if value is None and field in _NEEDED:
            raise ModelError(f"{name}.{key}", None, "the file lacks this key, which is needed")
        config[field] = value
    if config["kv_lora_rank"] is not None:
        config["qk_rope_head_dim"] = metadata.get(f"{name}.rope.dimension_count")
    per_layer = config["num_key_value_heads"]
    if isinstance(per_layer, list) and 0 in per_layer:  # layers without attention keep a state
        config["layer_types"] = ["attention" if heads else "mamba" for heads in per_layer]
        config["num_key_value_heads"] = max(per_layer)
    return config


def _model_type(name: str, metadata: Mapping[str, Any]) -> str:
    """Mixtral is stored as a llama with experts."""
    if name == "llama" and metadata.get("llama.expert_count"):
        return "mixtral"
    return _MODEL_TYPES.get(name, name)
