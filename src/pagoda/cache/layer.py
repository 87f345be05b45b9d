"""What the cache, the engine and the planner ask of a layer.

Layers that keep every token are in `pagoda.cache.attention_layer`; those that keep something else,
windows, latents, states, in `layers`, `latent` and `state`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pagoda.cache.attention_layer import AttentionLayerSpec
    from pagoda.cache.latent import LatentLayerSpec


class LayerSpec(Protocol):
    """What one layer keeps in the cache."""

    def block_bytes(self, block_size: int) -> int:
        """Bytes that `block_size` tokens of this layer take."""
        ...


class CachedLayer(LayerSpec, Protocol):
    """A layer of a pool: what it keeps, and how many blocks of a sequence."""

    @property
    def kind(self) -> str:
        """What the layer is called in reports."""
        ...

    @property
    def vectors(self) -> AttentionLayerSpec | None:
        """The keys and values that it keeps; None where it keeps something else."""
        ...

    @property
    def latents(self) -> LatentLayerSpec | None:
        """The latents that it keeps; None where it keeps something else."""
        ...

    @property
    def shares_blocks_with(self) -> tuple[object, ...]:
        """Layers where this is equal need as many blocks as one another for any request."""
        ...

    def num_blocks(self, num_tokens: int, block_size: int, under_way_tokens: int) -> int:
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

    def computed_in(self, dtype: str, state_dtype: str | None = None) -> CachedLayer:
        """The layer of a model that is run in another dtype."""
        ...

    def for_requests(self, num_states: int, encoder_tokens: int | None) -> CachedLayer:
        """The layer where a request holds that many states and its encoder's output is so long."""
        ...
