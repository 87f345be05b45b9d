"""How many blocks a memory holds of a model's keys and values, by the planner's account."""

from __future__ import annotations

from pagoda.errors import CapacityError
from pagoda.planning.request import ModelFacts, PlanRequest
from pagoda.planning.subject import read_subject


def blocks_in(facts: ModelFacts, memory_bytes: int, block_size: int, kv_cache_dtype: str) -> int:
    """Blocks of Pagoda's cache, each of `block_size` tokens.

    Raises `RefusedError` as `make_plan`, and `CapacityError` for a memory below one block.
    """
    request = PlanRequest(
        engine="pagoda",
        block_size=block_size,
        kv_cache_dtype=kv_cache_dtype,
        kv_cache_memory_bytes=memory_bytes,
    )
    block_bytes = read_subject(facts, request, None).pool.block_bytes
    if memory_bytes < block_bytes:
        limit = f"must hold a block of {block_size} tokens, {block_bytes} bytes"
        raise CapacityError("kv_cache_memory_bytes", memory_bytes, limit)
    return memory_bytes // block_bytes
