"""OLMo 3: OLMo 2 with three layers of four sliding, whose positions are not extended."""

from __future__ import annotations

from pagoda.models.config import ModelConfig
from pagoda.models.decoder import POST_NORM, DecoderLayer, DecoderSpec, QKNorm
from pagoda.models.families import parts
from pagoda.models.rope import RopeForm

ARCHITECTURE = "Olmo3ForCausalLM"
DEFAULT_SLIDING_WINDOW = 4096
DEFAULT_THETA = 500_000.0
PATTERN = 4
FULL = RopeForm(parts.FULL_ATTENTION)
SLIDING = RopeForm(parts.SLIDING_ATTENTION, extended=False)


def olmo3(config: ModelConfig, max_model_len: int | None) -> DecoderSpec:
    """`attention_bias` puts a bias on the output projection too."""
    sizes = parts.read_sizes(config)
    full, sliding = (
        parts.rope(config, sizes, max_model_len, default_theta=DEFAULT_THETA, form=form)
        for form in (FULL, SLIDING)
    )
    window = config.optional_integer("sliding_window", absent=DEFAULT_SLIDING_WINDOW)
    bias = config.boolean("attention_bias", default=False)
    mlp = parts.mlp(config, sizes)
    layers = parts.of_each(
        parts.windows_by_pattern(config, window, sizes.num_layers, PATTERN),
        lambda own: DecoderLayer(
            parts.attention(
                sizes,
                (full if own is None else sliding).spec,
                sliding_window=own,
                qkv_bias=bias,
                output_bias=bias,
                qk_norm=QKNorm.ROW,
            ),
            mlp,
            POST_NORM,
        ),
    )
    # layers that slide see their window alone, so the others' extension decides
    longest = max(full.max_position_embeddings, sliding.max_position_embeddings)
    return parts.decoder(config, ARCHITECTURE, sizes, layers, longest, norm_eps=1e-5)
