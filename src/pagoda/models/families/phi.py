"""Phi-1 to Phi-2: both halves of a layer take the same row, half of each head rotates."""

from __future__ import annotations

from dataclasses import replace

from pagoda.models.config import ModelConfig
from pagoda.models.decoder import PARALLEL_NORM, DecoderLayer, DecoderSpec, Learned, NormSpec
from pagoda.models.families import parts
from pagoda.models.rope import RopeForm

ARCHITECTURE = "PhiForCausalLM"
POSITIONS = RopeForm(partial_rotary_factor=0.5)


def phi(config: ModelConfig, max_model_len: int | None) -> DecoderSpec:
    """All products have biases, that of logits too. `qk_layernorm` is not covered."""
    if config.boolean("qk_layernorm", default=False):
        raise config.unsupported("qk_layernorm", True, "only false is covered")
    sizes = parts.read_sizes(config)
    parts.require_layer_types(config, None, sizes.num_layers)
    rope = parts.rope(config, sizes, max_model_len, form=POSITIONS)
    layer = DecoderLayer(
        parts.attention(sizes, rope.spec, qkv_bias=True, output_bias=True),
        parts.plain_mlp(config, sizes, bias=True, default="gelu_new"),
        PARALLEL_NORM,
    )
    layers = (layer,) * sizes.num_layers
    decoder = parts.decoder(config, ARCHITECTURE, sizes, layers, rope.max_position_embeddings)
    eps = config.number("layer_norm_eps", default=1e-5)
    norm = NormSpec(eps, is_centred=True, learned=Learned.WEIGHT_AND_BIAS)
    return replace(decoder, norm=norm, logit_bias=True)
