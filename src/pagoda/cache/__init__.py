"""A paged, prefix-shared KV cache's bookkeeping, usable alone: needs numpy, nothing else."""

from pagoda.cache.attention_layer import AttentionLayerSpec
from pagoda.cache.block import BlockCopy, BlockTable
from pagoda.cache.eviction import EvictionPolicy
from pagoda.cache.evictions import POLICIES as EVICTION_POLICIES
from pagoda.cache.layer import LayerSpec
from pagoda.cache.manager import CacheManager
from pagoda.cache.match import NO_MATCH, PrefixMatch
from pagoda.cache.slots import num_blocks_for, slot_mapping
from pagoda.cache.spec import CacheSpec
from pagoda.cache.stats import CacheStats
from pagoda.cache.window import AttentionWindow

__all__ = [
    "EVICTION_POLICIES",
    "NO_MATCH",
    "AttentionLayerSpec",
    "AttentionWindow",
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
