"""DeepSeek-V2 and V3: latent attention, and experts in all but the first layers."""

from __future__ import annotations

from functools import partial

from pagoda.models.config import ModelConfig
from pagoda.models.decoder import DecoderLayer, DecoderSpec
from pagoda.models.families import parts
from pagoda.models.families.latent_parts import LatentSizes, latent_attention, sizes

DEFAULTS = LatentSizes()


def _deepseek(
    architecture: str, default_dense: int, config: ModelConfig, max_model_len: int | None
) -> DecoderSpec:
    """`default_dense`: layers before those of experts, which are not covered, as are neighbours
    that do not rotate together."""
    own = sizes(config, DEFAULTS)
    num_dense = config.integer("first_k_dense_replace", default=default_dense, minimum=0)
    if num_dense < own.num_layers:
        limit = f"experts are not covered: only dense layers are, all {own.num_layers}"
        raise config.unsupported("first_k_dense_replace", num_dense, limit)
    if not config.boolean("rope_interleave", default=True):
        raise config.unsupported("rope_interleave", False, "only true is covered")
    attention, rope = latent_attention(config, own, max_model_len, DEFAULTS)
    bias = config.boolean("mlp_bias", default=False) and architecture == "DeepseekV2ForCausalLM"
    layers = (DecoderLayer(attention, parts.mlp(config, own, bias=bias)),) * own.num_layers
    return parts.decoder(config, architecture, own, layers, rope.max_position_embeddings)


deepseek_v2 = partial(_deepseek, "DeepseekV2ForCausalLM", 0)
deepseek_v3 = partial(_deepseek, "DeepseekV3ForCausalLM", 3)
