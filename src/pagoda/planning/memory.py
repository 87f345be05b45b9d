"""Where one device's memory goes."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pagoda.errors import CapacityError
from pagoda.planning.releases import Range
from pagoda.sizing.capacity import GIB


@dataclass(frozen=True, slots=True)
class MemoryPart:
    """Bytes of one use of a device's memory, at least and at most."""

    name: str
    low: int
    high: int
    source: str


@dataclass(frozen=True, slots=True)
class StageMemory:
    """One rank of a stage: its parts, and what is left for the cache."""

    total_bytes: int
    utilization: float
    parts: tuple[MemoryPart, ...]

    @property
    def requested_bytes(self) -> int:
        """ceil(total × utilization): what the engine lets itself have."""
        return math.ceil(self.total_bytes * self.utilization)

    @property
    def cache_low(self) -> int:
        """Bytes left for the cache where everything else takes most; below 0: too little."""
        return self.requested_bytes - sum(part.high for part in self.parts)

    @property
    def cache_high(self) -> int:
        return self.requested_bytes - sum(part.low for part in self.parts)

    def require_room(self, model: str, devices: str) -> None:
        """Raises `CapacityError` where not even the least leaves anything for the cache."""
        if self.cache_high > 0:
            return
        needed = sum(part.low for part in self.parts)
        parts = ", ".join(f"{part.name} {part.low / GIB:.2f}" for part in self.parts if part.low)
        raise CapacityError(
            "model",
            model,
            f"does not fit on {devices}: {needed / GIB:.2f} GiB are needed on each ({parts}) and "
            f"{self.requested_bytes / GIB:.2f} GiB may be used, so {-self.cache_high / GIB:.2f} "
            "GiB are missing before there is any cache",
        )


def part_of(name: str, bounds: Range) -> MemoryPart:
    """A part that is a range."""
    return MemoryPart(name, bounds.low, bounds.high, bounds.source)
