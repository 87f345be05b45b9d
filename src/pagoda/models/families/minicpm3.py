"""MiniCPM3: latent attention whose halves rotate; what is added shrinks with the layers."""

from __future__ import annotations

import math
from dataclasses import replace

from pagoda.models.config import ModelConfig
from pagoda.models.decoder import DecoderLayer, DecoderSpec
from pagoda.models.families import parts
from pagoda.models.families.latent_parts import LatentSizes, latent_attention, sizes

ARCHITECTURE = "MiniCPM3ForCausalLM"
DEFAULTS = LatentSizes(q_rank=768, rank=256, nope_dim=64, rope_dim=32, value_dim=None)
DEFAULT_EMBEDDING_SCALE = 12.0
DEFAULT_DEPTH_SCALE = 1.4
DEFAULT_BASE = 256
DEFAULT_NORM_EPS = 1e-5


def minicpm3(config: ModelConfig, max_model_len: int | None) -> DecoderSpec:
    """A null `scale_depth` adds as it is; a null `dim_model_base` leaves logits as they are."""
    own = sizes(config, DEFAULTS)
    attention, rope = latent_attention(config, own, max_model_len, DEFAULTS)
    depth = parts.optional_number(config, "scale_depth", absent=DEFAULT_DEPTH_SCALE)
    base = config.optional_integer("dim_model_base", absent=DEFAULT_BASE)
    layer = DecoderLayer(
        attention,
        parts.mlp(config, own, bias=config.boolean("mlp_bias", default=False)),
        residual_scale=1.0 if depth is None else depth / math.sqrt(own.num_layers),
    )
    decoder = parts.decoder(
        config,
        ARCHITECTURE,
        own,
        (layer,) * own.num_layers,
        rope.max_position_embeddings,
        tie_word_embeddings=True,
        norm_eps=DEFAULT_NORM_EPS,
    )
    return replace(
        decoder,
        embedding_scale=config.number("scale_emb", default=DEFAULT_EMBEDDING_SCALE),
        logit_scale=1.0 if base is None else base / own.hidden_size,
    )
