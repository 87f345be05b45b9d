"""A model is data: everything the executor must know about a decoder, and nothing it computes.

Families differ in this data, not in forward code. One layer, as the executor runs it:

    x = x + o_proj(attention(rope(qk_norm(qkv_proj(norm(x))))))
    x = x + down_proj(act(gate) * up),  gate, up = gate_up_proj(norm(x))
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pagoda.cache.attention_layer import AttentionLayerSpec
from pagoda.cache.layers import SlidingWindowLayerSpec, keeping
from pagoda.cache.spec import CacheSpec
from pagoda.cache.window import FULL_ATTENTION, AttentionWindow

_ANGLE_BYTES = 4


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
    logit_cap: float | None = None
    """A score s becomes cap · tanh(s / cap) before the softmax (Gemma 2, arXiv 2408.00118)."""
    sink_logits: bool = False
    """Each query head has a learned logit without a value that takes part in the softmax."""

    def cached_as(self, form: str) -> AttentionLayerSpec | SlidingWindowLayerSpec:
        """What the layer keeps, in a format."""
        kept = AttentionLayerSpec(self.num_kv_heads, self.head_dim, form)
        if self.sliding_window is None:
            return kept
        return SlidingWindowLayerSpec(kept, self.sliding_window)


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

    def angle_bytes(self, num_positions: int) -> int:
        """Bytes of the tables of angles for so many positions, which engines make at their start.

        A cosine and a sine in float32 for each angle of each kind of layer.
        """
        ropes = {layer.attention.rope for layer in self.layers}
        num_angles = sum(len(rope.inv_freq) for rope in ropes if rope is not None)
        return 2 * _ANGLE_BYTES * num_angles * num_positions

    def cache_spec(
        self,
        block_size: int,
        formats: str | Sequence[str],
        *,
        retention: AttentionWindow = FULL_ATTENTION,
        under_way_tokens: int = 0,
    ) -> CacheSpec:
        """The cache this model needs, K and V stored in one format, or each layer in its own.

        retention: what is kept of every sequence at most. under_way_tokens: see `CacheSpec`.
        """
        if isinstance(formats, str):
            formats = (formats,) * len(self.layers)
        layers = tuple(
            keeping(layer.attention.cached_as(form), retention)
            for layer, form in zip(self.layers, formats, strict=True)
        )
        return CacheSpec(layers, block_size, under_way_tokens)
