"""What recurrent layers keep, from the fields of a config: one function a kind.

Shapes as vLLM 0.32 allocates them.
"""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType

from pagoda.cache.formats import PLAIN_BITS, canonical
from pagoda.cache.state import StateLayerSpec
from pagoda.models.config import ModelConfig

StateReader = Callable[[ModelConfig, str], StateLayerSpec]


def mamba1(config: ModelConfig, dtype: str) -> StateLayerSpec:
    """Mamba: `expand` × hidden channels, each with a convolution and `d_state` numbers."""
    width = _optional(config, "intermediate_size" if _is_mamba(config) else "mamba_intermediate")
    if width is None:
        hidden = config.integer("hidden_size")
        width = hidden * _either(config, "mamba_expand", "expand", default=2)
    return StateLayerSpec(
        conv_length=_either(config, "mamba_d_conv", "conv_kernel", default=4) - 1,
        conv_width=width,
        conv_dtype=dtype,
        state_values=width * _either(config, "mamba_d_state", "state_size", default=16),
        state_dtype=_state_dtype(config, dtype),
    )


def mamba2(config: ModelConfig, dtype: str) -> StateLayerSpec:
    """Mamba-2: heads of `head_dim` × `d_state`; the convolution covers x, B and C of all groups."""
    heads = _either(config, "mamba_n_heads", "mamba_num_heads", "n_mamba_heads", "num_heads")
    size = _either(config, "mamba_d_head", "mamba_head_dim", "mamba_headdim", "head_dim")
    state = _either(config, "mamba_d_state", "ssm_state_size", "state_size")
    is_nemotron = config.values.get("model_type") in ("nemotron_h", "nemotronh")
    return StateLayerSpec(
        conv_length=_either(config, "mamba_d_conv", "conv_kernel", default=4) - 1,
        conv_width=heads * size,
        conv_dtype=dtype,
        state_values=heads * size * state,
        state_dtype=_state_dtype(config, "float32" if is_nemotron else dtype),
        group_width=2 * state,
        groups=_either(config, "mamba_n_groups", "n_groups", "mamba_ngroups", default=1),
    )


def delta(config: ModelConfig, dtype: str) -> StateLayerSpec:
    """Gated delta net of Qwen3-Next and Qwen3.5."""
    num_k, num_v = config.integer("linear_num_key_heads"), config.integer("linear_num_value_heads")
    size_k = config.integer("linear_key_head_dim")
    size_v = config.integer("linear_value_head_dim")
    return StateLayerSpec(
        conv_length=config.integer("linear_conv_kernel_dim", default=4) - 1,
        conv_width=2 * num_k * size_k + num_v * size_v,
        conv_dtype=dtype,
        state_values=num_v * size_v * size_k,
        state_dtype=_state_dtype(config, dtype),
    )


def kda(config: ModelConfig, dtype: str) -> StateLayerSpec:
    """Kimi delta attention: heads of size × size in float32."""
    section = config.section("linear_attn_config")
    if section is None:
        raise config.missing("linear_attn_config")
    heads, size = section.integer("num_heads"), section.integer("head_dim")
    return StateLayerSpec(
        conv_length=section.integer("short_conv_kernel_size", default=4) - 1,
        conv_width=3 * heads * size,
        conv_dtype=dtype,
        state_values=heads * size * size,
    )


def lightning(config: ModelConfig, dtype: str) -> StateLayerSpec:
    """Lightning attention of MiniMax-01: heads of size × size, no convolution."""
    heads = config.integer("num_attention_heads")
    size = config.optional_integer("head_dim") or config.integer("hidden_size") // heads
    values = heads * size * size
    return StateLayerSpec(0, 0, dtype, values, _state_dtype(config, dtype))


def short_conv(config: ModelConfig, dtype: str) -> StateLayerSpec:
    """The gated short convolution of LFM2."""
    width = config.integer("conv_dim", default=config.integer("hidden_size"))
    return StateLayerSpec(config.integer("conv_L_cache", default=3) - 1, width, dtype)


def unsized(config: ModelConfig, dtype: str) -> StateLayerSpec:
    """A state of which only the page that was made for it is known."""
    return StateLayerSpec(0, 0, dtype)


STATES: MappingProxyType[str, StateReader] = MappingProxyType(
    {
        "mamba1": mamba1,
        "mamba2": mamba2,
        "delta": delta,
        "kda": kda,
        "lightning": lightning,
        "short_conv": short_conv,
        "unsized": unsized,
    }
)


def _is_mamba(config: ModelConfig) -> bool:
    return config.values.get("model_type") in ("mamba", "falcon_mamba")


def _state_dtype(config: ModelConfig, default: str) -> str:
    for name in ("mamba_ssm_dtype", "mamba_ssm_cache_dtype"):
        if config.values.get(name) is not None:
            dtype = canonical(config.string(name).removeprefix("torch."))
            if dtype not in PLAIN_BITS:
                raise config.error(name, dtype, f"one of {', '.join(PLAIN_BITS)}")
            return dtype
    return default


def _optional(config: ModelConfig, *names: str) -> int | None:
    for name in names:
        value = config.optional_integer(name)
        if value is not None:
            return value
    return None


def _either(config: ModelConfig, *names: str, default: int | None = None) -> int:
    value = _optional(config, *names)
    if value is None:
        value = default
    if value is None:
        raise config.missing(names[0])
    return value
