"""A paged, prefix-shared KV cache's bookkeeping, usable alone: needs numpy, nothing else."""

from pagoda.cache.block import BlockCopy, BlockTable, num_blocks_for, slot_mapping
from pagoda.cache.eviction import LRU, EvictionPolicy
from pagoda.cache.manager import CacheManager, CacheStats, PrefixMatch
from pagoda.cache.spec import AttentionLayerSpec, CacheSpec, LayerSpec

__all__ = [
    "LRU",
    "AttentionLayerSpec",
    "BlockCopy",
    "BlockTable",
    "CacheManager",
    "CacheSpec",
    "CacheStats",
    "EvictionPolicy",
    "LayerSpec",
    "PrefixMatch",
    "num_blocks_for",
    "slot_mapping",
]
