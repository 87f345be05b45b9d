"""ERNIE 4.5, the dense ones: Llama whose neighbours rotate, with one switch for all biases."""

from __future__ import annotations

from pagoda.models.config import ModelConfig
from pagoda.models.decoder import DecoderLayer, DecoderSpec
from pagoda.models.families import parts

ARCHITECTURE = "Ernie4_5ForCausalLM"
DEFAULT_NUM_KV_HEADS = 2
DEFAULT_HEAD_DIM = 128
DEFAULT_THETA = 500_000.0


def ernie4_5(config: ModelConfig, max_model_len: int | None) -> DecoderSpec:
    """`use_bias` puts a bias on every projection; a null `head_dim` means hidden size / heads."""
    head_dim = config.optional_integer("head_dim", absent=DEFAULT_HEAD_DIM)
    sizes = parts.read_sizes(config, num_kv_heads=DEFAULT_NUM_KV_HEADS, head_dim=head_dim)
    parts.require_layer_types(config, None, sizes.num_layers)
    rope = parts.rope(config, sizes, max_model_len, default_theta=DEFAULT_THETA)
    bias = config.boolean("use_bias", default=False)
    layer = DecoderLayer(
        parts.attention(sizes, rope.spec, qkv_bias=bias, output_bias=bias),
        parts.mlp(config, sizes, bias=bias),
    )
    return parts.decoder(
        config,
        ARCHITECTURE,
        sizes,
        (layer,) * sizes.num_layers,
        rope.max_position_embeddings,
        tie_word_embeddings=True,
        norm_eps=1e-5,
    )
