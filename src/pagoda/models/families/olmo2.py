"""OLMo 2: norms of what each half adds in place of what it takes, and of all heads as one row."""

from __future__ import annotations

from pagoda.models.config import ModelConfig
from pagoda.models.decoder import POST_NORM, DecoderLayer, DecoderSpec, QKNorm
from pagoda.models.families import parts

ARCHITECTURE = "Olmo2ForCausalLM"


def olmo2(config: ModelConfig, max_model_len: int | None) -> DecoderSpec:
    """`attention_bias` puts a bias on the output projection too."""
    sizes = parts.read_sizes(config)
    parts.require_layer_types(config, None, sizes.num_layers)
    rope = parts.rope(config, sizes, max_model_len)
    bias = config.boolean("attention_bias", default=False)
    layer = DecoderLayer(
        parts.attention(sizes, rope.spec, qkv_bias=bias, output_bias=bias, qk_norm=QKNorm.ROW),
        parts.mlp(config, sizes),
        POST_NORM,
    )
    layers = (layer,) * sizes.num_layers
    longest = rope.max_position_embeddings
    return parts.decoder(config, ARCHITECTURE, sizes, layers, longest, norm_eps=1e-5)
