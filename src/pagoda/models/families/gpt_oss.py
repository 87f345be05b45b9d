"""gpt-oss: experts with a clamped gate, biases everywhere, and logits that take part in softmax."""

from __future__ import annotations

from dataclasses import replace

from pagoda.models.config import ModelConfig
from pagoda.models.decoder import Activation, DecoderLayer, DecoderSpec, MLPSpec
from pagoda.models.families import parts
from pagoda.models.families.experts import experts

ARCHITECTURE = "GptOssForCausalLM"
DEFAULT_NUM_KV_HEADS = 8
DEFAULT_HEAD_DIM = 64
DEFAULT_SLIDING_WINDOW = 128
DEFAULT_THETA = 150_000.0
PATTERN = 2
DEFAULT_ROPE = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}
"""Where a config says nothing of positions."""
_CLAMPS = {"swiglu_alpha": 1.702, "swiglu_limit": 7.0}


def gpt_oss(config: ModelConfig, max_model_len: int | None) -> DecoderSpec:
    """Every other layer slides, the first one too (arXiv 2508.10925)."""
    sizes = parts.read_sizes(config, num_kv_heads=DEFAULT_NUM_KV_HEADS, head_dim=DEFAULT_HEAD_DIM)
    values = config.values
    if not values.get("rope_parameters") and not values.get("rope_scaling"):
        values = {**values, "rope_parameters": DEFAULT_ROPE}
    told = ModelConfig(values, config.prefix)
    rope = parts.rope(told, sizes, max_model_len, default_theta=DEFAULT_THETA)
    for name, covered in _CLAMPS.items():
        value = config.number(name, default=covered)
        if value != covered:
            raise config.unsupported(name, value, f"only {covered:g} is covered")
    window = config.optional_integer("sliding_window", absent=DEFAULT_SLIDING_WINDOW)
    bias = config.boolean("attention_bias", default=True)
    inner = MLPSpec(sizes.intermediate_size, Activation.CLAMPED_SWIGLU, bias=True)
    sparse = replace(
        experts(config, inner, default_count=128, default_used=4),
        router_bias=True,
    )
    layers = parts.of_each(
        parts.windows_by_pattern(config, window, sizes.num_layers, PATTERN),
        lambda own: DecoderLayer(
            replace(
                parts.attention(
                    sizes, rope.spec, sliding_window=own, qkv_bias=bias, output_bias=bias
                ),
                sink_logits=True,
            ),
            sparse,
        ),
    )
    longest = rope.max_position_embeddings
    return parts.decoder(config, ARCHITECTURE, sizes, layers, longest, norm_eps=1e-5)
