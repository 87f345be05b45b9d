"""StableLM: layer norm with biases, and a quarter of each head rotates."""

from __future__ import annotations

from dataclasses import replace

from pagoda.models.config import ModelConfig
from pagoda.models.decoder import (
    PARALLEL_NORM,
    PRE_NORM,
    DecoderLayer,
    DecoderSpec,
    Learned,
    NormSpec,
)
from pagoda.models.families import parts
from pagoda.models.rope import RopeForm

ARCHITECTURE = "StableLmForCausalLM"
POSITIONS = RopeForm(partial_rotary_factor=0.25)
DEFAULT_NUM_KV_HEADS = 32


def stablelm(config: ModelConfig, max_model_len: int | None) -> DecoderSpec:
    """`use_parallel_residual` gives both halves of a layer the same row; heads have hidden_size /
    num_attention_heads numbers. `qk_layernorm` norms every head by weights of its own: not covered.
    """
    if config.boolean("qk_layernorm", default=False):
        raise config.unsupported("qk_layernorm", True, "only false is covered")
    own = {name: value for name, value in config.values.items() if name != "head_dim"}
    sizes = parts.read_sizes(ModelConfig(own, config.prefix), num_kv_heads=DEFAULT_NUM_KV_HEADS)
    parts.require_layer_types(config, None, sizes.num_layers)
    rope = parts.rope(config, sizes, max_model_len, form=POSITIONS)
    bias = config.boolean("use_qkv_bias", default=False)
    is_parallel = config.boolean("use_parallel_residual", default=False)
    layer = DecoderLayer(
        parts.attention(sizes, rope.spec, qkv_bias=bias),
        parts.mlp(config, sizes),
        PARALLEL_NORM if is_parallel else PRE_NORM,
    )
    layers = (layer,) * sizes.num_layers
    decoder = parts.decoder(config, ARCHITECTURE, sizes, layers, rope.max_position_embeddings)
    eps = config.number("layer_norm_eps", default=1e-5)
    return replace(decoder, norm=NormSpec(eps, is_centred=True, learned=Learned.WEIGHT_AND_BIAS))
