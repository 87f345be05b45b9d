"""A way to keep the cache, in the pool or on a tier: the axes along which the lab compares."""

from __future__ import annotations

from dataclasses import dataclass

from pagoda.sizing.cache_formats import AUTO

FULL_RETENTION = "full"


@dataclass(frozen=True, slots=True)
class Method:
    """How K and V are stored, and which tokens stay."""

    kv_cache_dtype: str = AUTO
    """As `EngineOptions`'."""
    retention: str = FULL_RETENTION
    """As `EngineOptions.kv_retention`."""
    tier_form: str | None = None
    """The lossy form of a tier that all blocks have come from; None: they stay in the pool."""

    def __str__(self) -> str:
        if self.tier_form is not None:
            return f"tier: {self.tier_form}"
        if self.retention == FULL_RETENTION:
            return self.kv_cache_dtype
        if self.kv_cache_dtype == AUTO:
            return self.retention
        return f"{self.kv_cache_dtype}, {self.retention}"


FULL = Method()
"""The cache in the dtype of the activations, which all others are compared with."""
