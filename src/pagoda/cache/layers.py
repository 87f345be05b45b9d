"""Layers that keep something else than K and V of every token.

| layer | keeps | blocks of a request |
|---|---|---|
| sliding window | the last `window` tokens | of window - 1 + tokens in flight, and one more |
| chunked | the tokens of the current chunk | of chunk + tokens in flight |
| latent (MLA) | one compressed vector a token, for all heads | all tokens |
| cross attention | K and V of the encoder's output | of the encoder's tokens |
| state (Mamba, linear attention) | one state of fixed size | 1, or 2 where states are shared |

A window's blocks are freed only once the tokens that were in flight are settled, and a window need
not begin with a block: hence the tokens in flight and the one more. Formulas: vLLM 0.32.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Protocol

from pagoda.cache.block import num_blocks_for
from pagoda.cache.formats import LATENT_BYTES, PLAIN_BITS
from pagoda.cache.spec import AttentionLayerSpec, LayerSpec
from pagoda.errors import InvalidOptionError

_LATENT_WIDTH = 512 + 64
_INDEX_SCALE_BYTES = 4


class CachedLayer(LayerSpec, Protocol):
    """What the planner asks of a layer; `AttentionLayerSpec` is one too."""

    @property
    def kind(self) -> str:
        """What the layer is called in reports."""
        ...

    @property
    def vectors(self) -> AttentionLayerSpec | None:
        """The keys and values that it keeps; None where it keeps something else."""
        ...

    @property
    def shares_blocks_with(self) -> tuple[object, ...]:
        """Layers where this is equal need as many blocks as one another for any request."""
        ...

    def num_blocks(self, num_tokens: int, block_size: int, in_flight_tokens: int) -> int:
        """Blocks of `block_size` tokens that a request of `num_tokens` keeps."""
        ...

    def read_bytes(self, num_tokens: int) -> int:
        """Bytes read to compute the token after `num_tokens` others."""
        ...

    def stored_as(self, dtype: str) -> CachedLayer:
        """The same layer with its vectors in another format, where it has vectors."""
        ...

    def sharded(self, tensor_parallel_size: int) -> CachedLayer:
        """What one of that many ranks keeps."""
        ...

    def keeping_all(self) -> CachedLayer:
        """The layer in an engine that frees no blocks of a running request."""
        ...

    def computed_in(self, dtype: str) -> CachedLayer:
        """The layer of a model that is run in another dtype."""
        ...

    def for_requests(self, num_states: int, encoder_tokens: int | None) -> CachedLayer:
        """The layer where a request holds that many states and its encoder's output is so long."""
        ...


@dataclass(frozen=True, slots=True)
class SlidingWindowLayerSpec:
    """Attention to the last `window` tokens, the present one included."""

    kind: ClassVar[str] = "sliding window"

    attention: AttentionLayerSpec
    window: int

    def __post_init__(self) -> None:
        if self.window < 1:
            raise InvalidOptionError("sliding_window", self.window, "must be at least 1")

    @property
    def vectors(self) -> AttentionLayerSpec:
        return self.attention

    @property
    def shares_blocks_with(self) -> tuple[object, ...]:
        return ("sliding", self.window)

    def block_bytes(self, block_size: int) -> int:
        return self.attention.block_bytes(block_size)

    def num_blocks(self, num_tokens: int, block_size: int, in_flight_tokens: int) -> int:
        kept = min(self.window - 1 + in_flight_tokens, num_tokens)
        return num_blocks_for(kept, block_size) + 1

    def read_bytes(self, num_tokens: int) -> int:
        return self.attention.block_bytes(min(num_tokens, self.window))

    def stored_as(self, dtype: str) -> SlidingWindowLayerSpec:
        return replace(self, attention=self.attention.stored_as(dtype))

    def sharded(self, tensor_parallel_size: int) -> SlidingWindowLayerSpec:
        return replace(self, attention=self.attention.sharded(tensor_parallel_size))

    def keeping_all(self) -> AttentionLayerSpec:
        return self.attention

    def computed_in(self, dtype: str) -> SlidingWindowLayerSpec:
        return self.stored_as(dtype)

    def for_requests(self, num_states: int, encoder_tokens: int | None) -> SlidingWindowLayerSpec:
        return self


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
    def shares_blocks_with(self) -> tuple[object, ...]:
        return ("chunked", self.chunk)

    def block_bytes(self, block_size: int) -> int:
        return self.attention.block_bytes(block_size)

    def num_blocks(self, num_tokens: int, block_size: int, in_flight_tokens: int) -> int:
        return num_blocks_for(min(self.chunk + in_flight_tokens, num_tokens), block_size)

    def read_bytes(self, num_tokens: int) -> int:
        return self.attention.block_bytes(min(num_tokens, self.chunk))

    def stored_as(self, dtype: str) -> ChunkedLayerSpec:
        return replace(self, attention=self.attention.stored_as(dtype))

    def sharded(self, tensor_parallel_size: int) -> ChunkedLayerSpec:
        return replace(self, attention=self.attention.sharded(tensor_parallel_size))

    def keeping_all(self) -> AttentionLayerSpec:
        return self.attention

    def computed_in(self, dtype: str) -> ChunkedLayerSpec:
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
    def shares_blocks_with(self) -> tuple[object, ...]:
        return ("cross", self.encoder_tokens)

    def block_bytes(self, block_size: int) -> int:
        return self.attention.block_bytes(block_size)

    def num_blocks(self, num_tokens: int, block_size: int, in_flight_tokens: int) -> int:
        return num_blocks_for(self.encoder_tokens, block_size)

    def read_bytes(self, num_tokens: int) -> int:
        return self.attention.block_bytes(self.encoder_tokens)

    def stored_as(self, dtype: str) -> CrossAttentionLayerSpec:
        return replace(self, attention=self.attention.stored_as(dtype))

    def sharded(self, tensor_parallel_size: int) -> CrossAttentionLayerSpec:
        return replace(self, attention=self.attention.sharded(tensor_parallel_size))

    def keeping_all(self) -> CrossAttentionLayerSpec:
        return self

    def computed_in(self, dtype: str) -> CrossAttentionLayerSpec:
        return self.stored_as(dtype)

    def for_requests(self, num_states: int, encoder_tokens: int | None) -> CrossAttentionLayerSpec:
        return self if encoder_tokens is None else replace(self, encoder_tokens=encoder_tokens)


@dataclass(frozen=True, slots=True)
class LatentLayerSpec:
    """Multi-head latent attention: one vector of `rank` + `rope_size` numbers a token.

    It serves all heads and as K and V at once, so ranks cannot split it: each keeps all of it. With
    a sparse indexer (DeepSeek-V3.2) a key of `index_size` fp8 numbers and a float32 scale is added.
    """

    kind: ClassVar[str] = "latent attention"

    rank: int
    rope_size: int
    dtype: str
    index_size: int = 0

    def __post_init__(self) -> None:
        width = self.rank + self.rope_size
        known = (*PLAIN_BITS, *LATENT_BYTES)
        if self.dtype not in known:
            raise InvalidOptionError(
                "kv_cache_dtype", self.dtype, f"latent attention is stored as {', '.join(known)}"
            )
        if self.dtype in LATENT_BYTES and width != _LATENT_WIDTH:
            raise InvalidOptionError(
                "kv_cache_dtype", self.dtype, f"is for a latent of 512 + 64 numbers, not of {width}"
            )

    @property
    def token_bytes(self) -> int:
        """Bytes of one token."""
        index_bytes = self.index_size + _INDEX_SCALE_BYTES if self.index_size else 0
        packed = LATENT_BYTES.get(self.dtype)
        if packed is not None:
            return packed + index_bytes
        return -(-(self.rank + self.rope_size) * PLAIN_BITS[self.dtype] // 8) + index_bytes

    @property
    def vectors(self) -> None:
        return None

    @property
    def shares_blocks_with(self) -> tuple[object, ...]:
        return ("full",)

    def block_bytes(self, block_size: int) -> int:
        return block_size * self.token_bytes

    def num_blocks(self, num_tokens: int, block_size: int, in_flight_tokens: int) -> int:
        return num_blocks_for(num_tokens, block_size)

    def read_bytes(self, num_tokens: int) -> int:
        return num_tokens * self.token_bytes

    def stored_as(self, dtype: str) -> LatentLayerSpec:
        return replace(self, dtype=dtype)

    def sharded(self, tensor_parallel_size: int) -> LatentLayerSpec:
        return self

    def keeping_all(self) -> LatentLayerSpec:
        return self

    def computed_in(self, dtype: str) -> LatentLayerSpec:
        return self.stored_as(dtype)

    def for_requests(self, num_states: int, encoder_tokens: int | None) -> LatentLayerSpec:
        return self


@dataclass(frozen=True, slots=True)
class StateLayerSpec:
    """A recurrent state of fixed size: Mamba, Mamba-2, gated delta net, short convolution.

    conv bytes  = conv_length × (conv_width + group_width × groups) × bytes of `conv_dtype`
    state bytes = state_values × bytes of `state_dtype`

    Both are split over ranks; groups that do not divide are replicated, one a rank.
    """

    kind: ClassVar[str] = "recurrent state"

    conv_length: int
    """Inputs that the convolution looks back on: its kernel less one."""
    conv_width: int
    conv_dtype: str
    state_values: int = 0
    state_dtype: str = "float32"
    group_width: int = 0
    groups: int = 0
    num_states: int = 1
    """Blocks of a request: one, two where states are kept for prefix sharing."""

    @property
    def state_bytes(self) -> int:
        """Bytes of one state, of any number of tokens."""
        conv = self.conv_length * (self.conv_width + self.group_width * self.groups)
        conv_bytes = conv * PLAIN_BITS[self.conv_dtype] // 8
        return conv_bytes + self.state_values * PLAIN_BITS[self.state_dtype] // 8

    @property
    def vectors(self) -> None:
        return None

    @property
    def shares_blocks_with(self) -> tuple[object, ...]:
        return ("state", self.state_bytes)

    def block_bytes(self, block_size: int) -> int:
        return self.state_bytes

    def num_blocks(self, num_tokens: int, block_size: int, in_flight_tokens: int) -> int:
        return self.num_states

    def read_bytes(self, num_tokens: int) -> int:
        return self.state_bytes

    def stored_as(self, dtype: str) -> StateLayerSpec:
        return self

    def sharded(self, tensor_parallel_size: int) -> StateLayerSpec:
        size = tensor_parallel_size
        groups = self.groups if self.groups % size == 0 else size
        return replace(
            self,
            conv_width=self.conv_width // size,
            groups=groups // size if self.groups else 0,
            state_values=self.state_values // size,
        )

    def keeping_all(self) -> StateLayerSpec:
        return self

    def computed_in(self, dtype: str) -> StateLayerSpec:
        """The convolution's inputs follow the model; so does a state that is no float32."""
        state = self.state_dtype if self.state_dtype == "float32" else dtype
        return replace(self, conv_dtype=dtype, state_dtype=state)

    def for_requests(self, num_states: int, encoder_tokens: int | None) -> StateLayerSpec:
        return replace(self, num_states=num_states)
