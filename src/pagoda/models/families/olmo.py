"""OLMo 1: Llama with a layer norm that has learned nothing (arXiv 2402.00838)."""

from __future__ import annotations

from dataclasses import replace

from pagoda.models.config import ModelConfig
from pagoda.models.decoder import DecoderLayer, DecoderSpec, Learned, NormSpec
from pagoda.models.families import parts

ARCHITECTURE = "OlmoForCausalLM"


def olmo(config: ModelConfig, max_model_len: int | None) -> DecoderSpec:
    """`attention_bias` is one of q, k, v and o. A `clip_qkv`, as in the first 7B, is not covered.

    Configs do not say the norm's epsilon; GGUF files do.
    """
    clip = config.values.get("clip_qkv")
    if clip is not None:
        raise config.unsupported("clip_qkv", clip, "only null is covered")
    sizes = parts.read_sizes(config)
    parts.require_layer_types(config, None, sizes.num_layers)
    rope = parts.rope(config, sizes, max_model_len)
    bias = config.boolean("attention_bias", default=False)
    layer = DecoderLayer(
        parts.attention(sizes, rope.spec, qkv_bias=bias, output_bias=bias),
        parts.mlp(config, sizes),
    )
    layers = (layer,) * sizes.num_layers
    decoder = parts.decoder(config, ARCHITECTURE, sizes, layers, rope.max_position_embeddings)
    eps = config.number("layer_norm_eps", default=1e-5)
    return replace(decoder, norm=NormSpec(eps, is_centred=True, learned=Learned.NOTHING))
