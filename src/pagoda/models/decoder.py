"""A model is data: everything the executor must know about a decoder, and nothing it computes.

Families differ in this data, not in forward code. One layer, as the executor runs it:

    x = x + o_proj(attention(rope(qk_norm(qkv_proj(norm(x))))))
    x = x + down_proj(act(gate) * up),  gate, up = gate_up_proj(norm(x))
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pagoda.cache.spec import AttentionLayerSpec, CacheSpec


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Rotary position embedding of one kind of layer.

    `inv_freq` holds `rotary_dim / 2` angles per position, the context extension (linear, dynamic,
    llama3, yarn) already applied; cosine and sine are multiplied by `attention_factor`. The
    half-split layout is used: value i is rotated with value i + rotary_dim / 2.
    """

    inv_freq: tuple[float, ...]
    attention_factor: float = 1.0


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """Grouped-query attention of one layer."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    """Multiplies q·k before the softmax, usually head_dim ** -0.5."""
    rope: RopeSpec | None
    """None: a layer without positions (NoPE)."""
    sliding_window: int | None = None
    """A token sees itself and the `sliding_window - 1` tokens before it; None: all."""
    qkv_bias: bool = False
    output_bias: bool = False
    qk_norm: bool = False
    """RMS norm over head_dim of every query and key head, before RoPE."""


@dataclass(frozen=True, slots=True)
class MLPSpec:
    """Gated feed-forward part of one layer."""

    intermediate_size: int
    activation: str = "silu"
    bias: bool = False


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    """One decoder layer."""

    attention: AttentionSpec
    mlp: MLPSpec


@dataclass(frozen=True, slots=True)
class DecoderSpec:
    """A whole decoder-only model."""

    architecture: str
    """Name of the architecture as the checkpoint gives it, e.g. LlamaForCausalLM."""
    vocab_size: int
    hidden_size: int
    layers: tuple[DecoderLayer, ...]
    norm_eps: float
    tie_word_embeddings: bool
    max_position_embeddings: int
    """Longest sequence the model was made for, in tokens, context extension included."""
    dtype: str
    """Dtype of the checkpoint's weights: float32, float16 or bfloat16."""

    def cache_spec(self, block_size: int, formats: str | Sequence[str]) -> CacheSpec:
        """The cache this model needs, K and V stored in one format, or each layer in its own."""
        if isinstance(formats, str):
            formats = (formats,) * len(self.layers)
        layers = tuple(
            AttentionLayerSpec(layer.attention.num_kv_heads, layer.attention.head_dim, form)
            for layer, form in zip(self.layers, formats, strict=True)
        )
        return CacheSpec(layers, block_size)
