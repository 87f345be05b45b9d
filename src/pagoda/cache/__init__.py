"""A paged, prefix-shared KV cache's bookkeeping, usable alone: needs numpy, nothing else."""

from pagoda.cache.block import BlockCopy, BlockTable, num_blocks_for, slot_mapping
from pagoda.cache.eviction import EvictionPolicy
from pagoda.cache.evictions import POLICIES as EVICTION_POLICIES
from pagoda.cache.manager import CacheManager
from pagoda.cache.match import NO_MATCH, PrefixMatch
from pagoda.cache.spec import AttentionLayerSpec, CacheSpec, LayerSpec
from pagoda.cache.stats import CacheStats

__all__ = [
    "EVICTION_POLICIES",
    "NO_MATCH",
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
