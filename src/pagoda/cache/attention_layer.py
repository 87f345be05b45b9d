"""Keys and values of every token of one attention layer.

One layer stores, for each token, `num_kv_heads` key vectors of `head_size` values and as many value
vectors of `head_size_v`:

    bytes per token and layer = num_kv_heads × (head_size + head_size_v) × bits / 8

with what a format keeps beside the numbers on top (`pagoda.cache.formats`). Multi-head,
grouped-query and multi-query attention differ in `num_kv_heads` alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from pagoda.cache.formats import vector_format
from pagoda.cache.slots import num_blocks_for
from pagoda.cache.window import FULL_ATTENTION, AttentionWindow
from pagoda.errors import InvalidOptionError


@dataclass(frozen=True, slots=True)
class AttentionLayerSpec:
    """Keys and values of all tokens of one attention layer, in one format."""

    kind: ClassVar[str] = "full attention"

    num_kv_heads: int
    head_size: int
    dtype: str
    head_size_v: int | None = None
    """Width of a value vector where it differs from that of a key."""

    def __post_init__(self) -> None:
        vector_format(self.dtype)
        for name in ("num_kv_heads", "head_size", "head_size_v"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InvalidOptionError(name, value, "must be at least 1")

    @property
    def values_per_token(self) -> int:
        """Numbers stored for one token: keys and values of all KV heads."""
        width = self.head_size + (self.head_size_v or self.head_size)
        return self.num_kv_heads * width

    def block_bytes(self, block_size: int) -> int:
        """Bytes of `block_size` tokens; a block of plain numbers is padded, never a token."""
        head_size_v = self.head_size_v or self.head_size
        bits = vector_format(self.dtype).bits(self.head_size, head_size_v)
        return -(-block_size * self.num_kv_heads * bits // 8)

    @property
    def vectors(self) -> AttentionLayerSpec:
        """The keys and values that it keeps: itself."""
        return self

    @property
    def latents(self) -> None:
        """It keeps no latents."""
        return None

    @property
    def window(self) -> AttentionWindow:
        """What a row sees: every token before it."""
        return FULL_ATTENTION

    @property
    def shares_blocks_with(self) -> tuple[object, ...]:
        """Layers where this is equal need as many blocks as one another for any request."""
        return ("full",)

    def num_blocks(self, num_tokens: int, block_size: int, under_way_tokens: int) -> int:
        """Blocks of `block_size` tokens that a request of `num_tokens` keeps."""
        return num_blocks_for(num_tokens, block_size)

    def read_bytes(self, num_tokens: int) -> int:
        """Bytes read to attend from one token to the `num_tokens` before it."""
        return self.block_bytes(num_tokens)

    def stored_as(self, dtype: str) -> AttentionLayerSpec:
        """The same layer with its vectors in another format."""
        return replace(self, dtype=dtype)

    def sharded(self, tensor_parallel_size: int) -> AttentionLayerSpec:
        """One rank's share: heads are split, and replicated once there are too few of them."""
        return replace(self, num_kv_heads=max(1, self.num_kv_heads // tensor_parallel_size))

    def keeping_all(self) -> AttentionLayerSpec:
        """The layer in an engine that frees no blocks of a running request: itself."""
        return self

    def computed_in(self, dtype: str, state_dtype: str | None = None) -> AttentionLayerSpec:
        """The layer of a model that is run in another dtype, and stored in it."""
        return self.stored_as(dtype)

    def for_requests(self, num_states: int, encoder_tokens: int | None) -> AttentionLayerSpec:
        """The layer keeps neither states nor an encoder's output: itself."""
        return self
