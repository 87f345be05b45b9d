"""GPT-NeoX and Pythia (arXiv 2204.06745): both halves of a layer take the stream, each normed."""

from __future__ import annotations

from dataclasses import replace

from pagoda.models.config import ModelConfig
from pagoda.models.decoder import (
    PARALLEL_NORMS,
    PRE_NORM,
    DecoderLayer,
    DecoderSpec,
    Learned,
    NormSpec,
)
from pagoda.models.families import parts
from pagoda.models.rope import RopeForm

ARCHITECTURE = "GPTNeoXForCausalLM"
POSITIONS = RopeForm(
    theta_field="rotary_emb_base", share_field="rotary_pct", partial_rotary_factor=0.25
)


def gpt_neox(config: ModelConfig, max_model_len: int | None) -> DecoderSpec:
    """`attention_bias` is one of q, k, v and o; there are as many KV heads as query heads."""
    own = {**config.values, "num_key_value_heads": None, "head_dim": None}
    sizes = parts.read_sizes(ModelConfig(own, config.prefix))
    parts.require_layer_types(config, None, sizes.num_layers)
    rope = parts.rope(config, sizes, max_model_len, form=POSITIONS)
    bias = config.boolean("attention_bias", default=True)
    is_parallel = config.boolean("use_parallel_residual", default=True)
    layer = DecoderLayer(
        parts.attention(sizes, rope.spec, qkv_bias=bias, output_bias=bias),
        parts.plain_mlp(config, sizes, bias=True, default="gelu"),
        PARALLEL_NORMS if is_parallel else PRE_NORM,
    )
    layers = (layer,) * sizes.num_layers
    decoder = parts.decoder(config, ARCHITECTURE, sizes, layers, rope.max_position_embeddings)
    eps = config.number("layer_norm_eps", default=1e-5)
    return replace(decoder, norm=NormSpec(eps, is_centred=True, learned=Learned.WEIGHT_AND_BIAS))
