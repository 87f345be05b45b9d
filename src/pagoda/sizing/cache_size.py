"""The size of the cache as options state it, or leave it to the device."""

from __future__ import annotations

from dataclasses import dataclass

from pagoda.errors import CapacityError
from pagoda.sizing.capacity import format_gib


@dataclass(frozen=True, slots=True)
class CacheSize:
    """What options say of it. A number of blocks goes before bytes, and bytes before a share."""

    num_gpu_blocks_override: int | None = None
    kv_cache_memory_bytes: int | None = None
    gpu_memory_utilization: float | None = None

    @property
    def option(self) -> str:
        """The name of the option that decides, whether it is set or not."""
        if self.num_gpu_blocks_override is not None:
            return "num_gpu_blocks_override"
        if self.kv_cache_memory_bytes is not None:
            return "kv_cache_memory_bytes"
        return "gpu_memory_utilization"

    @property
    def is_stated(self) -> bool:
        """The size is given, and not a share of what a device has."""
        return self.option != "gpu_memory_utilization"

    def stated_bytes(self, block_bytes: int) -> int | None:
        """Memory for blocks of that many bytes; None: a share decides."""
        if self.num_gpu_blocks_override is not None:
            return self.num_gpu_blocks_override * block_bytes
        return self.kv_cache_memory_bytes

    def refused(self, size_bytes: int, reason: str) -> CapacityError:
        """What is raised about a cache of this size; `reason` goes on from "a cache of … GiB is".

        It names the option that decided.
        """
        limit = f"a cache of {format_gib(size_bytes)} GiB is {reason}"
        return CapacityError(self.option, getattr(self, self.option), limit)
