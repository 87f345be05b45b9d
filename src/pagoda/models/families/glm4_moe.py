"""GLM-4.5: half of each head rotates, halves of that together; experts as in DeepSeek-V3.

arXiv 2508.06471
"""

from __future__ import annotations

from pagoda.models.config import ModelConfig
from pagoda.models.decoder import DecoderLayer, DecoderSpec, QKNorm
from pagoda.models.families import parts
from pagoda.models.families.glm4 import POSITIONS
from pagoda.models.families.routed_experts import RoutedForm, routed_layers

ARCHITECTURE = "Glm4MoeForCausalLM"
DEFAULT_NUM_KV_HEADS = 8
DEFAULT_NORM_EPS = 1e-5
ROUTED = RoutedForm(
    scoring="sigmoid",
    methods={"noaux_tc": True},
    group_top=2,
    corrects=True,
    num_experts=128,
    num_used=8,
    num_shared=1,
    intermediate_size=1408,
    num_dense=1,
)


def glm4_moe(config: ModelConfig, max_model_len: int | None) -> DecoderSpec:
    """`attention_bias` puts a bias on q, k and v alone."""
    sizes = parts.read_sizes(config, num_kv_heads=DEFAULT_NUM_KV_HEADS)
    parts.require_layer_types(config, None, sizes.num_layers)
    rope = parts.rope(config, sizes, max_model_len, form=POSITIONS)
    attention = parts.attention(
        sizes,
        rope.spec,
        qkv_bias=config.boolean("attention_bias", default=False),
        qk_norm=QKNorm.HEAD if config.boolean("use_qk_norm", default=False) else None,
    )
    mlps = routed_layers(config, parts.mlp(config, sizes), sizes.num_layers, ROUTED)
    layers = parts.of_each(mlps, lambda mlp: DecoderLayer(attention, mlp))
    longest = rope.max_position_embeddings
    return parts.decoder(config, ARCHITECTURE, sizes, layers, longest, norm_eps=DEFAULT_NORM_EPS)
