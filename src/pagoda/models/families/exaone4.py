"""EXAONE 4: norms of what each half adds, normed heads; some layers slide, the others may have no
positions."""

from __future__ import annotations

from pagoda.models.config import ModelConfig
from pagoda.models.decoder import POST_NORM, DecoderLayer, DecoderSpec, QKNorm
from pagoda.models.families import parts

ARCHITECTURE = "Exaone4ForCausalLM"
DEFAULT_NUM_KV_HEADS = 32
DEFAULT_SLIDING_WINDOW = 4096
DEFAULT_PATTERN = 4


def exaone4(config: ModelConfig, max_model_len: int | None) -> DecoderSpec:
    """With a `sliding_window` layers without one have no positions; without it all layers have."""
    sizes = parts.read_sizes(config, num_kv_heads=DEFAULT_NUM_KV_HEADS)
    rope = parts.rope(config, sizes, max_model_len)
    window = config.optional_integer("sliding_window", absent=DEFAULT_SLIDING_WINDOW)
    mlp = parts.mlp(config, sizes)
    layers = parts.of_each(
        parts.windows_by_pattern(config, window, sizes.num_layers, _pattern(config, window)),
        lambda own: DecoderLayer(
            parts.attention(
                sizes,
                rope.spec if window is None or own is not None else None,
                sliding_window=own,
                qk_norm=QKNorm.HEAD,
            ),
            mlp,
            POST_NORM,
        ),
    )
    longest = rope.max_position_embeddings
    return parts.decoder(config, ARCHITECTURE, sizes, layers, longest, norm_eps=1e-5)


def _pattern(config: ModelConfig, window: int | None) -> int:
    """Layers from one that attends to all to the next.

    A string such as LLLG, local and global layers, has its length; it must end with a G alone.
    """
    name = "sliding_window_pattern"
    value = config.values.get(name)
    if window is None or not isinstance(value, str):
        return config.integer(name, default=DEFAULT_PATTERN) if window is not None else 1
    if value != "L" * (len(value) - 1) + "G":
        raise config.unsupported(name, value, "local layers, L, and a global one, G, at its end")
    return len(value)
