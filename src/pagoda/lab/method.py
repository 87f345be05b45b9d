"""A way to keep the cache, in the pool or on a tier: the axes along which the lab compares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pagoda.engine.options import EngineOptions
from pagoda.errors import InvalidOptionError
from pagoda.sizing.cache_formats import AUTO
from pagoda.tiers.tier_option import FORMS

FULL_RETENTION = "full"
FORM_FIELD = "kv_tier_form"


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


def options_with(options: EngineOptions, method: Method) -> EngineOptions:
    """The options of an engine that keeps its cache so; `InvalidOptionError` where none does."""
    return replace(options, kv_cache_dtype=method.kv_cache_dtype, kv_retention=method.retention)


def named_options(
    options: EngineOptions,
    names: Sequence[str],
    retentions: Sequence[str] = (),
    forms: Sequence[str] = (),
) -> list[EngineOptions]:
    """Those of an engine for each format and retention that is named.

    Raises `InvalidOptionError` for a name, of a form too, that no device knows.
    """
    for name in forms:
        if name not in FORMS:
            raise InvalidOptionError(FORM_FIELD, name, f"one of {', '.join(FORMS)}")
    methods = [*map(Method, names), *(Method(retention=name) for name in retentions)]
    return [options_with(options, method) for method in methods]
