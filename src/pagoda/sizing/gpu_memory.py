"""Where a GPU's memory goes, and what is left of it for the KV cache.

    total    | others, and the runtime when the engine began  |
             | utilization × total:                           |
             |     weights                                    |
             |     PyTorch's other tensors of this process,   |
             |     the cache of another engine say            |
             |     peak, of the largest step and its sampling | measured
             |     graphs                                     | measured
             |     what the runtime has taken since           | measured
             |     the KV cache                               | what is left

What was in use when the engine began is not counted: the engine starts only if its share is free.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from pagoda.errors import CapacityError
from pagoda.sizing.cache_size import CacheSize
from pagoda.sizing.capacity import format_gib


@dataclass(frozen=True, slots=True)
class GPUUsage:
    """A device's memory at one moment."""

    total_bytes: int
    free_bytes: int
    """What the driver says is free, whoever uses the rest."""
    reserved_bytes: int
    """What this process's PyTorch holds."""
    allocated_bytes: int
    """The part of them that living tensors take."""

    @property
    def outside_bytes(self) -> int:
        """In use but not by PyTorch: compiled kernels, libraries, other processes."""
        return self.total_bytes - self.free_bytes - self.reserved_bytes


@dataclass(frozen=True, slots=True)
class MemoryProfile:
    """What an engine takes of a device beside its cache."""

    total_bytes: int
    weights_bytes: int
    others_bytes: int
    """PyTorch's other tensors that were there before: another engine's, say."""
    peak_bytes: int
    """What PyTorch takes above both in the largest step."""
    graphs_bytes: int
    """What the driver and PyTorch gave for CUDA graphs."""
    outside_bytes: int
    """Taken outside of PyTorch since the engine began."""

    def available_bytes(self, utilization: float) -> int:
        """utilization × total − weights − others − peak − graphs − outside, or 0."""
        there = self.weights_bytes + self.others_bytes
        taken = self.peak_bytes + self.graphs_bytes + self.outside_bytes
        return max(0, requested_bytes(self.total_bytes, utilization) - there - taken)

    def __str__(self) -> str:
        return (
            f"weights {format_gib(self.weights_bytes)} GiB, other tensors "
            f"{format_gib(self.others_bytes)} GiB, peak of the largest step "
            f"{format_gib(self.peak_bytes)} GiB, CUDA graphs {format_gib(self.graphs_bytes)} GiB, "
            f"outside of PyTorch {format_gib(self.outside_bytes)} GiB"
        )


def requested_bytes(total_bytes: int, utilization: float) -> int:
    """The engine's share of a device, rounded as vLLM does."""
    return math.ceil(total_bytes * utilization)


def require_share(usage: GPUUsage, utilization: float) -> None:
    """Raises `CapacityError` if less is free than the engine is to take."""
    requested = requested_bytes(usage.total_bytes, utilization)
    if usage.free_bytes < requested:
        raise CapacityError(
            "gpu_memory_utilization",
            utilization,
            f"that is {format_gib(requested)} GiB, but of the device's "
            f"{format_gib(usage.total_bytes)} GiB only {format_gib(usage.free_bytes)} GiB are "
            "free: lower it, or end what else uses the device",
        )


def require_free(size_bytes: int, asked: CacheSize, usage: GPUUsage) -> None:
    """Raises `CapacityError` if a cache of this size is more than what is free."""
    if size_bytes > usage.free_bytes:
        free, total = format_gib(usage.free_bytes), format_gib(usage.total_bytes)
        reason = f"more than the {free} GiB that are free of the device's {total}"
        raise asked.refused(size_bytes, reason)
