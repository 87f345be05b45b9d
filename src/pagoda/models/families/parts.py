"""What the family files share: reading the sizes of a decoder and putting its layers together."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from pagoda.errors import UnsupportedModelError
from pagoda.models.config import ModelConfig
from pagoda.models.decoder import (
    Activation,
    AttentionSpec,
    DecoderLayer,
    DecoderSpec,
    MLPSpec,
    NormSpec,
    QKNorm,
    RopeSpec,
)
from pagoda.models.rope import ONE_FOR_ALL, RopeForm, read_rope
from pagoda.models.rope_types import Rope

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")

FULL_ATTENTION = "full_attention"
SLIDING_ATTENTION = "sliding_attention"

_DTYPES = ("float32", "float16", "bfloat16")
_MOST_LAYERS = 1024
"""Many times those of any model; each is looked at one by one."""
_LARGEST_HEAD = 2**14
"""Many times that of any model; each of its pairs has an angle."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """The numbers that every family states under the same names."""

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int


def read_sizes(
    config: ModelConfig, *, num_kv_heads: int | None = None, head_dim: int | None = None
) -> Sizes:
    """The sizes in a config.

    `num_kv_heads` is the family's own where the config lacks the field; null means one for each
    query head, which also holds for a family without its own. `head_dim` is the family's own where
    the config gives none; a family without its own derives it as hidden_size / num_attention_heads.
    """
    hidden_size = config.integer("hidden_size")
    num_heads = config.integer("num_attention_heads")
    num_kv_heads = config.optional_integer("num_key_value_heads", absent=num_kv_heads) or num_heads
    if num_heads % num_kv_heads:
        raise config.error(
            "num_key_value_heads", num_kv_heads, f"must divide the {num_heads} attention heads"
        )
    head_dim = config.optional_integer("head_dim") or head_dim
    if head_dim is None:
        head_dim, rest = divmod(hidden_size, num_heads)
        if rest:
            raise config.error(
                "hidden_size", hidden_size, f"must be a multiple of the {num_heads} attention heads"
            )
    if head_dim % 2:
        raise config.error("head_dim", head_dim, "must be even, for rotary positions")
    if head_dim > _LARGEST_HEAD:
        raise config.error("head_dim", head_dim, f"must be at most {_LARGEST_HEAD}")
    num_layers = config.integer("num_hidden_layers")
    if num_layers > _MOST_LAYERS:
        raise config.error("num_hidden_layers", num_layers, f"must be at most {_MOST_LAYERS}")
    return Sizes(
        hidden_size,
        config.integer("intermediate_size"),
        num_layers,
        num_heads,
        num_kv_heads,
        head_dim,
    )


def attention(
    sizes: Sizes,
    rope: RopeSpec | None,
    *,
    sliding_window: int | None = None,
    qkv_bias: bool = False,
    output_bias: bool = False,
    qk_norm: QKNorm | None = None,
    scale: float | None = None,
    logit_cap: float | None = None,
) -> AttentionSpec:
    """Grouped-query attention; `scale` is head_dim ** -0.5 unless given."""
    return AttentionSpec(
        num_heads=sizes.num_heads,
        num_kv_heads=sizes.num_kv_heads,
        head_dim=sizes.head_dim,
        scale=sizes.head_dim**-0.5 if scale is None else scale,
        rope=rope,
        sliding_window=sliding_window,
        qkv_bias=qkv_bias,
        output_bias=output_bias,
        qk_norm=qk_norm,
        logit_cap=logit_cap,
    )


ACTIVATIONS = {
    "silu": Activation.SILU,
    "swish": Activation.SILU,
    "gelu": Activation.GELU,
    "gelu_pytorch_tanh": Activation.GELU_TANH,
    "gelu_new": Activation.GELU_TANH,
}
"""By the names that configs give them."""


def mlp(
    config: ModelConfig,
    sizes: Sizes,
    *,
    bias: bool = False,
    field: str = "hidden_act",
    default: str = "silu",
) -> MLPSpec:
    """The gated feed-forward part, with the activation that a field names."""
    return MLPSpec(sizes.intermediate_size, _activation(config, field, default), bias)


def plain_mlp(
    config: ModelConfig,
    sizes: Sizes,
    *,
    bias: bool,
    default: str,
    field: str = "hidden_act",
) -> MLPSpec:
    """The feed-forward part of a family without gates, likewise."""
    activation = _activation(config, field, default)
    return MLPSpec(sizes.intermediate_size, activation, bias, is_gated=False)


def _activation(config: ModelConfig, field: str, default: str) -> Activation:
    name = config.string(field, default=default)
    if name not in ACTIVATIONS:
        raise UnsupportedModelError(field, name, f"covered are {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name]


def rope(
    config: ModelConfig,
    sizes: Sizes,
    max_model_len: int | None,
    *,
    default_theta: float = 10_000.0,
    form: RopeForm = ONE_FOR_ALL,
) -> Rope:
    """The rotary embedding of the family's heads."""
    return read_rope(config, sizes.head_dim, default_theta, max_model_len, form)


def layer_windows(
    config: ModelConfig, defaults: Sequence[bool], *, default_window: int | None = None
) -> tuple[int | None, ...]:
    """The sliding window of each layer, or None where it attends to all.

    `layer_types` decides; without it the layers whose default is true slide, if the config has
    `use_sliding_window`. `sliding_window` counts only together with `use_sliding_window`; null
    means none, a config without the field means `default_window`.
    """
    types = config.items("layer_types", str, length=len(defaults))
    window = None
    if config.boolean("use_sliding_window", default=False):
        window = config.optional_integer("sliding_window", absent=default_window)
    if types is None:
        return tuple(window if slides else None for slides in defaults)
    _require_covered(types)
    if SLIDING_ATTENTION in types and window is None:
        raise config.error(
            "sliding_window",
            config.values.get("sliding_window"),
            "layer_types has sliding layers, so use_sliding_window and a window are needed",
        )
    return tuple(window if name == SLIDING_ATTENTION else None for name in types)


def windows_by_pattern(
    config: ModelConfig, window: int | None, num_layers: int, pattern: int
) -> tuple[int | None, ...]:
    """The sliding window of each layer: `layer_types` decides, else one in `pattern` has none.

    The last of each `pattern` layers attends to all.
    """
    types = config.items("layer_types", str, length=num_layers)
    if types is None:
        slides = [bool((index + 1) % pattern) for index in range(num_layers)]
    else:
        _require_covered(types)
        slides = [name == SLIDING_ATTENTION for name in types]
        if any(slides) and window is None:
            raise config.error("sliding_window", window, "layer_types has sliding layers")
    return tuple(window if slid else None for slid in slides)


def of_each(kinds: Sequence[K], make: Callable[[K], T]) -> list[T]:
    """What is made of each, once of those that are equal: alike layers are one object, which is
    looked at once wherever they are counted (`DecoderSpec.kinds`)."""
    made = {kind: make(kind) for kind in dict.fromkeys(kinds)}
    return [made[kind] for kind in kinds]


def _require_covered(layer_types: Sequence[str]) -> None:
    for name in layer_types:
        if name not in (FULL_ATTENTION, SLIDING_ATTENTION):
            raise UnsupportedModelError(
                "layer_types", name, f"covered are {FULL_ATTENTION} and {SLIDING_ATTENTION}"
            )


def require_layer_types(config: ModelConfig, window: int | None, num_layers: int) -> None:
    """Refuse `layer_types` that contradict a family whose layers all have the same window.

    transformers ignores the list in these families and vLLM follows it, so it has to say the same.
    """
    types = config.items("layer_types", str, length=num_layers) or ()
    own = FULL_ATTENTION if window is None else SLIDING_ATTENTION
    for name in types:
        if name != own:
            limit = f"only {own}, as in all layers of this model, is covered"
            raise UnsupportedModelError("layer_types", name, limit)


def decoder(
    config: ModelConfig,
    architecture: str,
    sizes: Sizes,
    layers: Sequence[DecoderLayer],
    longest: int,
    *,
    tie_word_embeddings: bool = False,
    norm_eps: float = 1e-6,
) -> DecoderSpec:
    """The whole decoder; `tie_word_embeddings` and `norm_eps` are the family's defaults."""
    dtype = config.string("dtype", default=config.string("torch_dtype", default="float32"))
    dtype = dtype.removeprefix("torch.")
    if dtype not in _DTYPES:
        raise UnsupportedModelError("dtype", dtype, f"covered are {', '.join(_DTYPES)}")
    num_predicting = config.integer("num_nextn_predict_layers", default=0, minimum=0)
    if num_predicting > _MOST_LAYERS:
        limit = f"must be at most {_MOST_LAYERS}"
        raise config.error("num_nextn_predict_layers", num_predicting, limit)
    return DecoderSpec(
        architecture=architecture,
        vocab_size=config.integer("vocab_size"),
        hidden_size=sizes.hidden_size,
        layers=tuple(layers),
        norm=NormSpec(config.number("rms_norm_eps", default=norm_eps)),
        tie_word_embeddings=config.boolean("tie_word_embeddings", default=tie_word_embeddings),
        max_position_embeddings=longest,
        dtype=dtype,
        num_predicting_layers=num_predicting,
    )


def optional_number(config: ModelConfig, name: str, *, absent: float) -> float | None:
    """A number above 0; None where the field is null, `absent` where it is missing."""
    return config.optional_number(name) if name in config.values else absent
