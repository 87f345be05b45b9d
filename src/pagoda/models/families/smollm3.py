"""SmolLM3: some layers have no positions (NoPE), and only those may slide."""

from __future__ import annotations

from pagoda.models.config import ModelConfig
from pagoda.models.decoder import DecoderLayer, DecoderSpec
from pagoda.models.families import parts

ARCHITECTURE = "SmolLM3ForCausalLM"
DEFAULT_NUM_KV_HEADS = 4
DEFAULT_THETA = 2_000_000.0
DEFAULT_NO_ROPE_INTERVAL = 4


def smollm3(config: ModelConfig, max_model_len: int | None) -> DecoderSpec:
    """`no_rope_layers` holds a 1 for each layer that *has* positions and a 0 for each that has not.

    Without it every `no_rope_layer_interval`-th layer has none.
    """
    sizes = parts.read_sizes(config, num_kv_heads=DEFAULT_NUM_KV_HEADS)
    rope = parts.rope(config, sizes, max_model_len, default_theta=DEFAULT_THETA)
    has_rope = _layers_with_rope(config, sizes.num_layers)
    windows = parts.layer_windows(config, [not rotated for rotated in has_rope])
    bias = config.boolean("attention_bias", default=False)
    mlp = parts.mlp(config, sizes, bias=config.boolean("mlp_bias", default=False))
    layers = parts.of_each(
        [*zip(has_rope, windows, strict=True)],
        lambda kind: DecoderLayer(
            parts.attention(
                sizes,
                rope.spec if kind[0] else None,
                sliding_window=kind[1],
                qkv_bias=bias,
                output_bias=bias,
            ),
            mlp,
        ),
    )
    return parts.decoder(
        config,
        ARCHITECTURE,
        sizes,
        layers,
        rope.max_position_embeddings,
        tie_word_embeddings=True,
    )


def _layers_with_rope(config: ModelConfig, num_layers: int) -> list[bool]:
    given = config.items("no_rope_layers", int, length=num_layers)
    if given is not None:
        return [flag != 0 for flag in given]
    interval = config.integer("no_rope_layer_interval", default=DEFAULT_NO_ROPE_INTERVAL)
    return [(index + 1) % interval != 0 for index in range(num_layers)]
