"""OLMoE: Llama with experts, and queries and keys normed as rows."""

from __future__ import annotations

from pagoda.models.config import ModelConfig
from pagoda.models.decoder import DecoderLayer, DecoderSpec, QKNorm
from pagoda.models.families import parts
from pagoda.models.families.experts import experts

ARCHITECTURE = "OlmoeForCausalLM"


def olmoe(config: ModelConfig, max_model_len: int | None) -> DecoderSpec:
    """`clip_qkv` is not covered, which no released model has."""
    sizes = parts.read_sizes(config)
    parts.require_layer_types(config, None, sizes.num_layers)
    rope = parts.rope(config, sizes, max_model_len)
    clip = config.optional_number("clip_qkv")
    if clip is not None:
        raise config.unsupported("clip_qkv", clip, "only null is covered")
    sparse = experts(
        config,
        parts.mlp(config, sizes),
        default_count=64,
        default_used=8,
        normalised=config.boolean("norm_topk_prob", default=False),
    )
    bias = config.boolean("attention_bias", default=False)
    layer = DecoderLayer(
        parts.attention(sizes, rope.spec, qkv_bias=bias, output_bias=bias, qk_norm=QKNorm.ROW),
        sparse,
    )
    layers = (layer,) * sizes.num_layers
    longest = rope.max_position_embeddings
    return parts.decoder(config, ARCHITECTURE, sizes, layers, longest, norm_eps=1e-5)
