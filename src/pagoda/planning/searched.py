"""Configs of models that a search found (NAS): one block for each layer, and no common fields.

    block_configs   [{"attention": {"n_heads_in_group": 8}, "ffn": {"ffn_mult": 2.625}}, …]

A block's attention has heads / n_heads_in_group KV heads, or is left out (`no_op`), or is one
matrix (`replace_with_linear`), which caches nothing. The block is read as the fields of other
configs, so that nothing behind this file knows of blocks. Source: configs of Llama-Nemotron.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pagoda.models.config import ModelConfig

_BLOCKS = "block_configs"
_WIDTH_MULTIPLE = 256
_LISTS = ("layer_types", "layers_block_type", "num_key_value_heads", _BLOCKS)
"""Fields that may have one item for each layer."""
_SPELLED = "hybrid_override_pattern"


def fields_of_blocks(config: ModelConfig) -> dict[str, Any]:
    """`layer_types`, `num_key_value_heads` and `intermediate_size`, one item for each block.

    Empty where there are no blocks. Raises `ModelError` for a block that makes no sense.
    """
    blocks = config.items(_BLOCKS, dict, length=0)
    if blocks is None:
        return {}
    listed = [ModelConfig(block, f"{config.prefix}{_BLOCKS}.") for block in config.values[_BLOCKS]]
    return {
        "layer_types": [_kind(block) for block in listed],
        "num_key_value_heads": [_kv_heads(config, block) for block in listed],
        "intermediate_size": [_width(config, block) for block in listed],
    }


def count_of_layers(values: Mapping[str, Any]) -> int | None:
    """How many layers a config describes one by one, where it does not say it in a number."""
    listed = (values.get(name) for name in _LISTS)
    lengths = [len(items) for items in listed if isinstance(items, list) and items]
    pattern = values.get(_SPELLED)
    if isinstance(pattern, str) and pattern:
        lengths.append(len(pattern))
    return lengths[0] if lengths else None


def _kind(block: ModelConfig) -> str:
    named = block.values.get("block_type")
    if isinstance(named, str):
        return named
    attention = block.section("attention")
    if attention is None or _is_left_out(attention):
        return "none"
    return "mamba" if attention.section("mamba") is not None else "full_attention"


def _kv_heads(config: ModelConfig, block: ModelConfig) -> int:
    heads = config.integer("num_attention_heads")
    attention = block.section("attention")
    if attention is None or _is_left_out(attention):
        return heads  # of a layer that caches nothing
    named = attention.optional_integer("num_key_value_heads")
    if named is not None:
        return named
    in_group = attention.optional_integer("n_heads_in_group")
    if in_group is None:
        return config.integer("num_key_value_heads", default=heads)
    if heads % in_group:
        limit = f"must divide the {heads} attention heads"
        raise attention.error("n_heads_in_group", in_group, limit)
    return heads // in_group


def _width(config: ModelConfig, block: ModelConfig) -> int:
    """The MLP's: of the number given, or of `ffn_mult`, a multiple of 256."""
    mlp = block.section("ffn")
    if mlp is None or _is_left_out(mlp):
        return 0
    named = mlp.optional_integer("intermediate_size", minimum=0)
    if named is not None:
        return named
    factor = mlp.optional_number("ffn_mult")
    hidden = config.integer("hidden_size")
    if factor is None:
        return 4 * hidden
    width = int(2 * factor * hidden / 3)
    return -(-width // _WIDTH_MULTIPLE) * _WIDTH_MULTIPLE


def _is_left_out(part: ModelConfig) -> bool:
    return part.boolean("no_op", default=False) or part.boolean(
        "replace_with_linear", default=False
    )
