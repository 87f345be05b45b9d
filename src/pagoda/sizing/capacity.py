"""How many blocks a memory holds, and what that means for requests.

The formulas and the printed lines are vLLM's, so that figures can be held side by side:

    blocks       = memory // bytes of a block
    concurrency  = blocks / blocks that one request of max_model_len needs
    tokens       = int(concurrency * max_model_len)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Generic, TypeVar

from pagoda.cache.spec import PoolShape
from pagoda.errors import CapacityError

GIB = 2**30
DEFAULT_SHARE = 0.5
DEFAULT_CAP_BYTES = 4 * GIB
"""A CPU's memory is shared with everything else on the machine: nobody expects half a server's
memory to go to a model that was merely tried out."""

Shape = TypeVar("Shape", bound=PoolShape)


@dataclass(frozen=True, slots=True)
class Capacity(Generic[Shape]):
    """What a KV cache holds."""

    spec: Shape
    num_blocks: int
    max_model_len: int
    available_bytes: int
    """Memory the blocks were cut from."""

    @property
    def size_bytes(self) -> int:
        """Memory the blocks take, exactly; the engine allocates this much."""
        return self.num_blocks * self.spec.block_bytes

    @property
    def max_concurrency(self) -> float:
        """Requests of `max_model_len` tokens that fit at once."""
        return self.num_blocks / self.spec.num_blocks(self.max_model_len)

    @property
    def num_tokens(self) -> int:
        """Tokens that fit, in requests of `max_model_len`."""
        return self.num_blocks * self.max_model_len // self.spec.num_blocks(self.max_model_len)

    def log_lines(self, device: str) -> tuple[str, ...]:
        """The lines an engine prints at its start; `device` is CPU or GPU."""
        return (
            f"Available KV cache memory: {format_gib(self.available_bytes)} GiB",
            f"{device} KV cache size: {self.num_tokens:,} tokens, Maximum concurrency for "
            f"{self.max_model_len:,} tokens per request: {self.max_concurrency:.2f}x",
        )


def plan_capacity(
    spec: Shape,
    *,
    available_bytes: int,
    max_model_len: int,
    num_blocks_override: int | None = None,
) -> Capacity[Shape]:
    """The cache that fits into `available_bytes`, or of exactly `num_blocks_override` blocks.

    Raises `CapacityError` if one request of `max_model_len` tokens does not fit.
    """
    num_blocks = spec.num_blocks_in(available_bytes)
    if num_blocks_override is not None:
        num_blocks = num_blocks_override
        available_bytes = num_blocks * spec.block_bytes
    needed_blocks = spec.num_blocks(max_model_len)
    if num_blocks < needed_blocks:
        needed_bytes = needed_blocks * spec.block_bytes
        decisive = (
            "`gpu_memory_utilization` or `kv_cache_memory_bytes`"
            if num_blocks_override is None
            else "`num_gpu_blocks_override`"
        )
        raise CapacityError(
            "max_model_len",
            max_model_len,
            f"To serve at least one request with the model's max seq len ({max_model_len}), "
            f"({format_gib(needed_bytes)} GiB KV cache is needed, which is larger than the "
            f"available KV cache memory ({format_gib(available_bytes)} GiB). Based on the "
            f"available memory, the estimated maximum model length is "
            f"{spec.longest_request(num_blocks)}. Try increasing {decisive}, or decreasing "
            "`max_model_len`",
        )
    return Capacity(spec, num_blocks, max_model_len, available_bytes)


def share_of_free(free_bytes: int, share: float | None, longest_request_bytes: int) -> int:
    """What Pagoda takes of the memory that is free once the weights are loaded.

    `share` is `--gpu-memory-utilization`; None takes half, but no more than 4 GiB or one request of
    the longest length, whichever is more.
    """
    if share is not None:
        return int(free_bytes * share)
    return min(int(free_bytes * DEFAULT_SHARE), max(DEFAULT_CAP_BYTES, longest_request_bytes))


def format_gib(size_bytes: int) -> str:
    """GiB with at most two decimals; where these would be zeros, with two digits that are not."""
    gib = size_bytes / GIB
    if not 0 < gib < 0.01:
        return f"{round(gib, 2)}"
    return f"{gib:.{1 - math.floor(math.log10(gib))}f}"
