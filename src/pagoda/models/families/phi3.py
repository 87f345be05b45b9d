"""Phi-3 and Phi-4: Llama with q, k and v in one tensor, gate and up in another."""

from __future__ import annotations

from pagoda.models.config import ModelConfig
from pagoda.models.decoder import DecoderLayer, DecoderSpec
from pagoda.models.families import parts
from pagoda.models.rope import RopeForm

ARCHITECTURE = "Phi3ForCausalLM"
POSITIONS = RopeForm(
    partial_rotary_factor=1.0,
    original_max_position_embeddings=4096,
    longrope_names=("su", "yarn"),
)


def phi3(config: ModelConfig, max_model_len: int | None) -> DecoderSpec:
    """`longrope` has two sets of angles: which of them, the longest sequence to be run decides."""
    sizes = parts.read_sizes(config)
    rope = parts.rope(config, sizes, max_model_len, form=POSITIONS)
    window = config.optional_integer("sliding_window")
    parts.require_layer_types(config, window, sizes.num_layers)
    layer = DecoderLayer(
        parts.attention(sizes, rope.spec, sliding_window=window), parts.mlp(config, sizes)
    )
    layers = (layer,) * sizes.num_layers
    longest = rope.max_position_embeddings
    return parts.decoder(config, ARCHITECTURE, sizes, layers, longest, norm_eps=1e-5)
