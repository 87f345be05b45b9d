"""DeepSeek-V2 and V3: latent attention, and experts in all but the first layers.

DeepSeek-V2, arXiv 2405.04434; DeepSeek-V3, arXiv 2412.19437
"""

from __future__ import annotations

from pagoda.models.config import ModelConfig
from pagoda.models.decoder import DecoderLayer, DecoderSpec, MLPSpec
from pagoda.models.families import parts
from pagoda.models.families.latent_parts import LatentSizes, latent_attention, sizes
from pagoda.models.families.parts import Sizes
from pagoda.models.families.routed_experts import RoutedForm, routed_layers

DEFAULTS = LatentSizes()
V2 = RoutedForm(
    scoring="softmax",
    methods={"greedy": False, "group_limited_greedy": True},
    group_top=1,
    corrects=False,
    num_experts=64,
    num_used=None,
    num_shared=2,
    intermediate_size=1407,
    num_dense=0,
    num_groups=None,
    num_used_groups=None,
    normalised=False,
)
V3 = RoutedForm(
    scoring="sigmoid",
    methods={"noaux_tc": True},
    group_top=2,
    corrects=True,
    num_experts=256,
    num_used=8,
    num_shared=1,
    intermediate_size=2048,
    num_dense=3,
    num_groups=8,
    num_used_groups=4,
    scale=2.5,
)


def deepseek_v2(config: ModelConfig, max_model_len: int | None) -> DecoderSpec:
    """`mlp_bias` is one of dense layers and shared experts.

    Weights that are normalised are refused: DeepSeek's own code does not scale them then,
    transformers does not normalise.
    """
    own = sizes(config, DEFAULTS)
    if config.boolean("norm_topk_prob", default=False):
        raise config.unsupported("norm_topk_prob", True, "only false is covered")
    dense = parts.mlp(config, own, bias=config.boolean("mlp_bias", default=False))
    return _deepseek("DeepseekV2ForCausalLM", config, own, dense, V2, max_model_len)


def deepseek_v3(config: ModelConfig, max_model_len: int | None) -> DecoderSpec:
    """Neighbours rotate together; a config that says otherwise is refused."""
    own = sizes(config, DEFAULTS)
    if not config.boolean("rope_interleave", default=True):
        raise config.unsupported("rope_interleave", False, "only true is covered")
    dense = parts.mlp(config, own)
    return _deepseek("DeepseekV3ForCausalLM", config, own, dense, V3, max_model_len)


def _deepseek(
    architecture: str,
    config: ModelConfig,
    own: Sizes,
    dense: MLPSpec,
    form: RoutedForm,
    max_model_len: int | None,
) -> DecoderSpec:
    attention, rope = latent_attention(config, own, max_model_len, DEFAULTS)
    mlps = routed_layers(config, dense, own.num_layers, form)
    layers = parts.of_each(mlps, lambda mlp: DecoderLayer(attention, mlp))
    return parts.decoder(config, architecture, own, layers, rope.max_position_embeddings)
