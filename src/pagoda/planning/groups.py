"""One rank's pool for the groups of a model's layers (`pagoda.cache.groups`), and its stages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from pagoda.cache.groups import CacheGroup
from pagoda.cache.layer import CachedLayer
from pagoda.cache.longest import longest_that_fits
from pagoda.cache.state import StateLayerSpec
from pagoda.errors import InvalidOptionError

_EVERY_TOKEN = ("full",)


@dataclass(frozen=True)
class GroupedPool:
    """One rank's pool for a model's groups: a `PoolShape`."""

    groups: tuple[CacheGroup, ...]
    stages: tuple[range, ...]
    """Ids of the layers of each stage of the pipeline."""
    under_way_tokens: int = 0
    """Tokens scheduled but not settled: windows keep their blocks that long."""
    context_parallel_size: int = 1
    """Ranks that a sequence's tokens are dealt out to."""
    reserved_blocks: int = 0
    """Blocks that no request gets."""
    longest: int = 2**40
    """No sequence is longer, whatever fits."""

    @cached_property
    def block_bytes(self) -> int:
        """Bytes of a block on the stage where it takes most; kept, as each length asks for it."""
        return max(self.stage_block_bytes)

    @cached_property
    def stage_block_bytes(self) -> tuple[int, ...]:
        """Bytes of a block on each stage: as much as its widest group takes there."""
        return tuple(max(group.bytes_on(stage) for group in self.groups) for stage in self.stages)

    @property
    def block_size(self) -> int:
        """Tokens of the smallest block."""
        return min(group.block_size for group in self.groups)

    def num_blocks(self, num_tokens: int) -> int:
        """Blocks that a sequence of `num_tokens` occupies, over all groups."""
        own = -(-num_tokens // self.context_parallel_size)
        return sum(group.num_blocks(own, self.under_way_tokens) for group in self.groups)

    def shared_blocks(self, num_tokens: int) -> int:
        """Blocks of a common beginning of `num_tokens` that all requests can refer to.

        Full blocks of layers that keep every token: a window's or a state's are private.
        """
        own = num_tokens // self.context_parallel_size
        every = [g for g in self.groups if g.layer.shares_blocks_with == _EVERY_TOKEN]
        return sum(own // group.block_size for group in every)

    def num_users(self, num_blocks: int, context: int, shared_prefix: int = 0) -> int:
        """Requests of `context` tokens that `num_blocks` blocks hold at once."""
        shared = self.shared_blocks(shared_prefix)
        own = self.num_blocks(context) - shared
        usable = num_blocks - self.reserved_blocks - shared
        if usable < own:
            return 0
        return usable // own if own else usable

    def num_blocks_in(self, memory_bytes: int) -> int:
        """Whole blocks that fit into `memory_bytes`."""
        return max(0, memory_bytes) // self.block_bytes

    def longest_request(self, num_blocks: int) -> int:
        """Tokens of the longest sequence that `num_blocks` blocks hold, as an engine tells it.

        Blocks that no request gets (`reserved_blocks`) are not taken off: engines do not either.
        """
        return replace(self, reserved_blocks=0).longest_context(num_blocks, users=1)

    def longest_context(self, num_blocks: int, users: int, shared_prefix: int = 0) -> int:
        """Tokens of the longest requests of which `users` fit at once; 0: not even short ones."""

        def fits(length: int) -> bool:
            return self.num_users(num_blocks, length, min(shared_prefix, length)) >= users

        return longest_that_fits(fits, self.longest)


def aligned_block_size(layers: Sequence[CachedLayer], block_size: int, alignment: int) -> int:
    """Tokens of a block once an attention page is at least as large as the largest state.

    block = alignment × ceil(state / (alignment × attention bytes of a token))
    """
    kinds = dict.fromkeys(layers)
    states = [layer.block_bytes(1) for layer in kinds if layer.kind == StateLayerSpec.kind]
    others = [layer.block_bytes(1) for layer in kinds if layer.kind != StateLayerSpec.kind]
    if not states or not others:
        return block_size
    alignment = max(alignment, block_size)
    return max(block_size, alignment * -(-max(states) // (alignment * max(others))))


def stages_of(
    num_layers: int, num_stages: int, split: Sequence[int] | None = None
) -> tuple[range, ...]:
    """Layers of each stage of a pipeline: evenly, what is left over going to the middle.

    Raises `InvalidOptionError` for a split that does not add up, or more stages than layers.
    """
    if split is None:
        if num_stages > num_layers:
            raise InvalidOptionError(
                "pipeline_parallel_size", num_stages, f"the model has {num_layers} layers"
            )
        counts = [num_layers // num_stages] * num_stages
        for step in range(num_layers % num_stages):
            counts[-2 - step] += 1
    else:
        counts = list(split)
        if len(counts) != num_stages or sum(counts) != num_layers:
            limit = f"{num_stages} stages of {num_layers} layers in all"
            raise InvalidOptionError("pipeline_split", counts, limit)
    starts = [sum(counts[:stage]) for stage in range(num_stages)]
    return tuple(range(start, start + n) for start, n in zip(starts, counts, strict=True))


def kinds_of(layers: Sequence[CachedLayer]) -> Counter[str]:
    """How many layers there are of each kind."""
    return Counter(layer.kind for layer in layers)
