"""GLM-4: half of each head rotates, neighbours together; the later form has four norms a layer."""

from __future__ import annotations

from functools import partial

from pagoda.models.config import ModelConfig
from pagoda.models.decoder import (
    PRE_NORM,
    SANDWICH_NORM,
    DecoderLayer,
    DecoderSpec,
    NormPlacement,
)
from pagoda.models.families import parts
from pagoda.models.rope import RopeForm

DEFAULT_NUM_KV_HEADS = 2
DEFAULT_HEAD_DIM = 128
DEFAULT_NORM_EPS = 1.5625e-7
POSITIONS = RopeForm(partial_rotary_factor=0.5)


def _glm(
    architecture: str, norms: NormPlacement, config: ModelConfig, max_model_len: int | None
) -> DecoderSpec:
    """`attention_bias` puts a bias on q, k and v alone."""
    sizes = parts.read_sizes(config, num_kv_heads=DEFAULT_NUM_KV_HEADS, head_dim=DEFAULT_HEAD_DIM)
    parts.require_layer_types(config, None, sizes.num_layers)
    rope = parts.rope(config, sizes, max_model_len, form=POSITIONS)
    layer = DecoderLayer(
        parts.attention(sizes, rope.spec, qkv_bias=config.boolean("attention_bias", default=True)),
        parts.mlp(config, sizes),
        norms,
    )
    layers = (layer,) * sizes.num_layers
    longest = rope.max_position_embeddings
    return parts.decoder(config, architecture, sizes, layers, longest, norm_eps=DEFAULT_NORM_EPS)


glm = partial(_glm, "GlmForCausalLM", PRE_NORM)
"""GLM-4-9b-chat."""
glm4 = partial(_glm, "Glm4ForCausalLM", SANDWICH_NORM)
"""GLM-4-0414."""
