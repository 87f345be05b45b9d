"""What is asked of a pool, and the answer for an amount of memory."""

from __future__ import annotations

from dataclasses import dataclass

from pagoda.planning.groups import GroupedPool
from pagoda.planning.planned_engine import PlannedEngine
from pagoda.planning.result import PoolFigures
from pagoda.sizing.capacity import Capacity, plan_capacity


@dataclass(frozen=True, slots=True)
class PoolQuestion:
    """A pool's shape and what is to be known about it."""

    pool: GroupedPool
    engine: PlannedEngine
    device: str
    """CPU or GPU, as the engine says."""
    max_model_len: int
    context: int
    users: int
    shared_prefix: int
    max_num_seqs: int
    """However many the memory holds, no more requests run at once."""
    made_for: int | None
    """Positions of the model."""
    tells_memory: bool
    """Whether what is available is printed, and known: told how much to take, vLLM does not say it;
    told how many blocks, it says what it would have taken."""

    def answer(self, available_bytes: int, *, must_fit: bool) -> PoolFigures:
        """The figures for that much memory.

        Raises `CapacityError`, in the engine's own words, if one request of max_model_len tokens
        `must_fit` and does not.
        """
        pool, length = self.pool, self.max_model_len
        capacity = (
            plan_capacity(pool, available_bytes=available_bytes, max_model_len=length)
            if must_fit
            else Capacity(pool, pool.num_blocks_in(available_bytes), length, available_bytes)
        )
        count = capacity.num_blocks
        longest = pool.longest_context(count, self.users, self.shared_prefix)
        is_any = self.made_for is None and longest == pool.longest
        return PoolFigures(
            available_bytes=available_bytes,
            num_blocks=count,
            size_bytes=capacity.size_bytes,
            num_tokens=self._tokens(capacity),
            concurrency=self._concurrency(capacity),
            users=min(pool.num_users(count, self.context, self.shared_prefix), self.max_num_seqs),
            longest_context=None if is_any else min(longest, self.max_model_len),
            lines=self._lines(capacity),
        )

    def _tokens(self, capacity: Capacity[GroupedPool]) -> int:
        if self.engine.is_pagoda:
            return capacity.num_tokens
        return self.engine.release.print_tokens(self.pool, capacity.num_blocks, self.max_model_len)

    def _concurrency(self, capacity: Capacity[GroupedPool]) -> float:
        if self.engine.is_pagoda:
            return capacity.max_concurrency
        count = capacity.num_blocks
        return self.engine.release.concurrency(self.pool, count, self.max_model_len)

    def _lines(self, capacity: Capacity[GroupedPool]) -> tuple[str, ...]:
        if capacity.num_blocks < self.pool.num_blocks(self.max_model_len):
            return ()  # it refuses to start
        lines = capacity.log_lines(self.device)
        if not self.engine.is_pagoda:
            size = f"{self.device} KV cache size: {self._tokens(capacity):,} tokens"
            concurrency = (
                f"Maximum concurrency for {self.max_model_len:,} tokens per request: "
                f"{self._concurrency(capacity):.2f}x"
            )
            is_one = self.engine.release.tells_one_line
            told = [f"{size}, {concurrency}"] if is_one else [size, concurrency]
            lines = (lines[0], *told)
        return lines if self.tells_memory else lines[1:]
