"""Layers that keep something else than K and V of every token.

| layer | keeps | blocks of a request |
|---|---|---|
| sliding window | the last `window` tokens | of window - 1 + tokens under way, and one more |
| chunked | the tokens of the current chunk | of chunk + tokens under way |
| latent (MLA) | one compressed vector a token, for all heads | all tokens |
| cross attention | K and V of the encoder's output | of the encoder's tokens |
| state (Mamba, linear attention) | one state of fixed size | 1, 2 or one a block |

A window's blocks are freed only once the tokens that were under way are settled, and a window need
not begin with a block: hence the tokens under way and the one more. Formulas: vLLM 0.32.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from pagoda.cache.attention_layer import AttentionLayerSpec
from pagoda.cache.latent import LatentLayerSpec
from pagoda.cache.slots import num_blocks_for
from pagoda.cache.window import AttentionWindow
from pagoda.errors import InvalidOptionError


@dataclass(frozen=True, slots=True)
class SlidingWindowLayerSpec:
    """Attention to the last `window` tokens, the present one included, and to the first `sinks`."""

    kind: ClassVar[str] = "sliding window"

    attention: AttentionLayerSpec | LatentLayerSpec
    """What it keeps of a token: keys and values, or a latent."""
    length: int
    """Tokens of the window."""
    sinks: int = 0

    def __post_init__(self) -> None:
        if self.length < 1:
            raise InvalidOptionError("sliding_window", self.length, "must be at least 1")

    @property
    def vectors(self) -> AttentionLayerSpec | None:
        return self.attention.vectors

    @property
    def latents(self) -> LatentLayerSpec | None:
        return self.attention.latents

    @property
    def dtype(self) -> str:
        """The format of its vectors."""
        return self.attention.dtype

    @property
    def window(self) -> AttentionWindow:
        """What a row sees."""
        return AttentionWindow(self.length, self.sinks)

    @property
    def shares_blocks_with(self) -> tuple[object, ...]:
        return ("sliding", self.length, self.sinks)

    def block_bytes(self, block_size: int) -> int:
        return self.attention.block_bytes(block_size)

    def num_blocks(self, num_tokens: int, block_size: int, under_way_tokens: int) -> int:
        return self.window.num_blocks(num_tokens, block_size, under_way_tokens)

    def read_bytes(self, num_tokens: int) -> int:
        return self.attention.read_bytes(min(num_tokens, self.length + self.sinks))

    def stored_as(self, dtype: str) -> SlidingWindowLayerSpec:
        return replace(self, attention=self.attention.stored_as(dtype))

    def sharded(self, tensor_parallel_size: int) -> SlidingWindowLayerSpec:
        return replace(self, attention=self.attention.sharded(tensor_parallel_size))

    def keeping_all(self) -> AttentionLayerSpec | LatentLayerSpec:
        return self.attention

    def computed_in(self, dtype: str, state_dtype: str | None = None) -> SlidingWindowLayerSpec:
        return self.stored_as(dtype)

    def for_requests(self, num_states: int, encoder_tokens: int | None) -> SlidingWindowLayerSpec:
        return self


OwnLayerSpec = AttentionLayerSpec | SlidingWindowLayerSpec | LatentLayerSpec
"""What Pagoda's own cache holds."""


def keeping(layer: OwnLayerSpec, retention: AttentionWindow) -> OwnLayerSpec:
    """What a layer keeps of a sequence of which no more than `retention` stays."""
    window = layer.window.narrowed(retention)
    if window == layer.window:
        return layer
    kept = layer.attention if isinstance(layer, SlidingWindowLayerSpec) else layer
    return SlidingWindowLayerSpec(kept, window.window, window.sinks)


@dataclass(frozen=True, slots=True)
class ChunkedLayerSpec:
    """Attention within chunks of `chunk` tokens, as in Llama 4."""

    kind: ClassVar[str] = "chunked attention"

    attention: AttentionLayerSpec
    chunk: int

    def __post_init__(self) -> None:
        if self.chunk < 1:
            raise InvalidOptionError("attention_chunk_size", self.chunk, "must be at least 1")

    @property
    def vectors(self) -> AttentionLayerSpec:
        return self.attention

    @property
    def latents(self) -> None:
        return None

    @property
    def shares_blocks_with(self) -> tuple[object, ...]:
        return ("chunked", self.chunk)

    def block_bytes(self, block_size: int) -> int:
        return self.attention.block_bytes(block_size)

    def num_blocks(self, num_tokens: int, block_size: int, under_way_tokens: int) -> int:
        return num_blocks_for(min(self.chunk + under_way_tokens, num_tokens), block_size)

    def read_bytes(self, num_tokens: int) -> int:
        return self.attention.block_bytes(min(num_tokens, self.chunk))

    def stored_as(self, dtype: str) -> ChunkedLayerSpec:
        return replace(self, attention=self.attention.stored_as(dtype))

    def sharded(self, tensor_parallel_size: int) -> ChunkedLayerSpec:
        return replace(self, attention=self.attention.sharded(tensor_parallel_size))

    def keeping_all(self) -> AttentionLayerSpec:
        return self.attention

    def computed_in(self, dtype: str, state_dtype: str | None = None) -> ChunkedLayerSpec:
        return self.stored_as(dtype)

    def for_requests(self, num_states: int, encoder_tokens: int | None) -> ChunkedLayerSpec:
        return self


@dataclass(frozen=True, slots=True)
class CrossAttentionLayerSpec:
    """K and V of an encoder's output, for up to `encoder_tokens` of it."""

    kind: ClassVar[str] = "cross attention"

    attention: AttentionLayerSpec
    encoder_tokens: int

    @property
    def vectors(self) -> AttentionLayerSpec:
        return self.attention

    @property
    def latents(self) -> None:
        return None

    @property
    def shares_blocks_with(self) -> tuple[object, ...]:
        return ("cross", self.encoder_tokens)

    def block_bytes(self, block_size: int) -> int:
        return self.attention.block_bytes(block_size)

    def num_blocks(self, num_tokens: int, block_size: int, under_way_tokens: int) -> int:
        return num_blocks_for(self.encoder_tokens, block_size)

    def read_bytes(self, num_tokens: int) -> int:
        return self.attention.block_bytes(self.encoder_tokens)

    def stored_as(self, dtype: str) -> CrossAttentionLayerSpec:
        return replace(self, attention=self.attention.stored_as(dtype))

    def sharded(self, tensor_parallel_size: int) -> CrossAttentionLayerSpec:
        return replace(self, attention=self.attention.sharded(tensor_parallel_size))

    def keeping_all(self) -> CrossAttentionLayerSpec:
        return self

    def computed_in(self, dtype: str, state_dtype: str | None = None) -> CrossAttentionLayerSpec:
        return self.stored_as(dtype)

    def for_requests(self, num_states: int, encoder_tokens: int | None) -> CrossAttentionLayerSpec:
        return self if encoder_tokens is None else replace(self, encoder_tokens=encoder_tokens)
