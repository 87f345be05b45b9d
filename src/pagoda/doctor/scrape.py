"""One reading of an engine's `/metrics`.

text ── prometheus_client's parser ──> samples ── those of one engine's prefix ──> Scrape
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from pagoda.errors import InvalidOptionError

ENGINES = ("pagoda", "vllm")
"""Prefixes of the metrics that are understood."""

_OLDER_NAMES = {
    "gpu_cache_usage_perc": "kv_cache_usage_perc",
    "gpu_prefix_cache_queries_total": "prefix_cache_queries_total",
    "gpu_prefix_cache_hits_total": "prefix_cache_hits_total",
    **{
        f"time_per_output_token_seconds_{part}": f"inter_token_latency_seconds_{part}"
        for part in ("bucket", "sum", "count")
    },
}
"""What vLLM called a few of them before, and calls them now."""
_CUMULATIVE = ("_total", "_bucket", "_sum", "_count")
_MOST = 1e18
_NEEDED = "num_requests_running"
"""The one gauge that every release of both engines has."""


@dataclass(frozen=True, slots=True)
class Series:
    """One time series: what it is called, without the engine's prefix, and whose it is."""

    name: str
    model_name: str
    engine: str
    labels: frozenset[tuple[str, str]]
    """All others."""

    @property
    def is_cumulative(self) -> bool:
        """It only rises, unless its server starts anew."""
        return self.name.endswith(_CUMULATIVE)

    def label(self, name: str) -> str | None:
        return dict(self.labels).get(name)


@dataclass(frozen=True, slots=True)
class Scrape:
    """The values of one engine's metrics at one time, some of which may make no sense."""

    time_s: float
    """Seconds of a clock that only goes forward."""
    engine: str
    """One of `ENGINES`."""
    values: Mapping[Series, float]
    started_s: float | None = None
    """When the process says that it began, in seconds since 1970."""

    @property
    def model_names(self) -> list[str]:
        """Models that the engine's own gauges are of, sorted."""
        return sorted({key.model_name for key in self.values if key.name == _NEEDED})


def makes_sense(value: float) -> bool:
    """It is a number that an engine could come to; none of its metrics is ever below 0."""
    return 0 <= value < _MOST


def read_scrape(text: str, time_s: float, source: str) -> Scrape:
    """The metrics of Pagoda or vLLM in Prometheus' text format.

    `source` is where the text comes from. Raises `InvalidOptionError` for what is not that format,
    for metrics that are of neither engine, or of both.
    """
    samples = _samples(text, source)
    found = [
        prefix
        for prefix in ENGINES
        if any(sample.name == f"{prefix}:{_NEEDED}" for sample in samples)
    ]
    if not found:
        limit = f"has no engine's metrics: neither pagoda:{_NEEDED} nor vllm:{_NEEDED} is there"
        raise InvalidOptionError("url", source, limit)
    if len(found) > 1:
        limit = "has the metrics of Pagoda and of vLLM at once; name the server itself"
        raise InvalidOptionError("url", source, limit)
    prefix = f"{found[0]}:"
    values = {
        _series(sample, prefix): sample.value
        for sample in samples
        if sample.name.startswith(prefix)
    }
    started = [s.value for s in samples if s.name == "process_start_time_seconds"]
    return Scrape(time_s, found[0], values, started[0] if len(started) == 1 else None)


def _samples(text: str, source: str) -> list[Sample]:
    try:
        samples = [
            sample for family in text_string_to_metric_families(text) for sample in family.samples
        ]
    # The parser has no error of its own: what it meets in other text is one of these.
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        first = text.strip().partition("\n")[0][:40]
        limit = f"does not give Prometheus' text format but {first!r}"
        raise InvalidOptionError("url", source, limit) from error
    if not samples:
        raise InvalidOptionError("url", source, "gives no metrics at all")
    return samples


def _series(sample: Sample, prefix: str) -> Series:
    name = sample.name.removeprefix(prefix)
    # They go to a terminal, and whoever is watched chooses them.
    labels = {label: _printable(value) for label, value in sample.labels.items()}
    model_name = labels.pop("model_name", "")
    engine = labels.pop("engine", "")
    return Series(_OLDER_NAMES.get(name, name), model_name, engine, frozenset(labels.items()))


def _printable(text: str) -> str:
    return "".join(
        letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text
    )
