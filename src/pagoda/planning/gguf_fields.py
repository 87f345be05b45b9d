"""The metadata of a GGUF file under the names of a `config.json`, as far as the planner reads it.

The engine's own reader (`pagoda.models.gguf_config`) refuses what it cannot run; a plan needs
shapes alone, so it reads more architectures.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from pagoda.errors import ModelError, UnsupportedModelError

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
        "model_type": _MODEL_TYPES.get(name, name),
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
