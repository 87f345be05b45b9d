"""A way to keep the cache: the axes along which the lab compares."""

from __future__ import annotations

from dataclasses import dataclass

from pagoda.sizing.cache_formats import AUTO


@dataclass(frozen=True, slots=True)
class Method:
    """How K and V are stored, and which tokens stay."""

    kv_cache_dtype: str = AUTO
    """As `EngineOptions`'."""
    retention: str | None = None
    """None: all tokens stay. There is no other so far."""

    def __str__(self) -> str:
        return self.kv_cache_dtype


FULL = Method()
"""The cache in the dtype of the activations, which all others are compared with."""
