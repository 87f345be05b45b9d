"""Configs that describe every layer by itself, and none of them in a number."""

from __future__ import annotations

from typing import Any

import pytest

from pagoda.errors import ModelError
from pagoda.models.config import ModelConfig
from pagoda.planning.architecture import read_architecture
from pagoda.planning.parameters import count_parameters

KEPT = {"attention": {"n_heads_in_group": 8, "no_op": False}, "ffn": {"ffn_mult": 5.25}}
WIDE = {"attention": {"n_heads_in_group": 16}, "ffn": {"intermediate_size": 1000}}
LEFT_OUT = {"attention": {"n_heads_in_group": None, "no_op": True}, "ffn": {"ffn_mult": 1.0}}
LINEAR = {"attention": {"replace_with_linear": True}, "ffn": {"no_op": True}}


def searched(*blocks: dict[str, Any]) -> ModelConfig:
    return ModelConfig(
        {
            "model_type": "nemotron-nas", "hidden_size": 8192, "num_attention_heads": 64,
            "num_key_value_heads": None, "vocab_size": 1000, "torch_dtype": "bfloat16",
            "block_configs": list(blocks),
        }
    )  # fmt: skip


def test_each_block_is_a_layer() -> None:
    """8 and 4 KV heads of 128, and two layers that keep nothing."""
    model = read_architecture(searched(KEPT, LEFT_OUT, WIDE, LINEAR))
    assert [len(kept) for kept in model.layers] == [1, 0, 1, 0]
    assert [layer.block_bytes(1) for layer in model.cached_layers] == [8 * 256 * 2, 4 * 256 * 2]
    assert model.assumed == ()


def test_the_mlps_have_the_widths_of_their_blocks() -> None:
    config = searched(KEPT, LEFT_OUT, WIDE, LINEAR)
    layers = count_parameters(config, read_architecture(config)).layers
    widths = [28_672, 5632, 1000, 0]  # 2 × 5.25 × 8192 / 3, and 5461 in steps of 256
    assert [layer.mlp for layer in layers] == [3 * 8192 * width for width in widths]


def test_heads_that_do_not_divide_are_named() -> None:
    odd = {"attention": {"n_heads_in_group": 7}, "ffn": {}}
    with pytest.raises(ModelError) as caught:
        read_architecture(searched(odd))
    assert caught.value.field == "block_configs.attention.n_heads_in_group"


@pytest.mark.parametrize(
    "fields",
    [
        {"layer_types": ["full_attention"] * 3},
        {"num_key_value_heads_per_layer": [4, 2, 4]},
        {"num_transformer_layers": 3},
    ],
)
def test_layers_are_counted_where_no_number_says_how_many(fields: dict[str, Any]) -> None:
    config = {"model_type": "openelm", "hidden_size": 64, "num_attention_heads": 4, **fields}
    assert len(read_architecture(ModelConfig(config)).layers) == 3
