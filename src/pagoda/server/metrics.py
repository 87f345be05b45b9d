"""`/metrics` for Prometheus: the engine's statistics under vLLM's names, prefix `pagoda:`.

The figures are read from `AsyncEngine.stats()` when they are asked for; nothing is counted here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from pagoda.engine.async_engine import AsyncEngine

_GAUGES = {
    "num_requests_running": ("num_requests_running", "Requests in the running batch."),
    "num_requests_waiting": ("num_requests_waiting", "Requests waiting to be scheduled."),
    "kv_cache_usage_perc": ("kv_cache_usage", "KV cache usage; 1 means 100 per cent."),
}
_COUNTERS = {
    "num_preemptions": ("num_preemptions", "Preemptions."),
    "prefix_cache_queries": ("prefix_cache_queries", "Tokens looked up in the prefix cache."),
    "prefix_cache_hits": ("prefix_cache_hits", "Tokens found in the prefix cache."),
    "prompt_tokens": ("prompt_tokens", "Prompt tokens of all requests."),
    "generation_tokens": ("generation_tokens", "Tokens generated."),
}
_LABELS = ("model_name", "engine")
_ENGINE = "0"


class EngineCollector(Collector):
    """Tells Prometheus what the engine's statistics say."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    def collect(self) -> Iterator[Metric]:
        stats = self._engine.stats()
        labels = (self._engine.model_name, _ENGINE)
        for name, (field, help_text) in _GAUGES.items():
            gauge = GaugeMetricFamily(f"pagoda:{name}", help_text, labels=_LABELS)
            gauge.add_metric(labels, getattr(stats, field))
            yield gauge
        for name, (field, help_text) in _COUNTERS.items():
            counter = CounterMetricFamily(f"pagoda:{name}", help_text, labels=_LABELS)
            counter.add_metric(labels, getattr(stats, field))
            yield counter
        finished = CounterMetricFamily(
            "pagoda:request_success",
            "Sequences that ended, by reason.",
            labels=(*_LABELS, "finished_reason"),
        )
        for reason, count in stats.num_finished.items():
            finished.add_metric((*labels, reason), count)
        yield finished
        config = GaugeMetricFamily(
            "pagoda:cache_config_info",
            "How the KV cache is laid out.",
            labels=(*_LABELS, "block_size", "num_gpu_blocks"),
        )
        config.add_metric((*labels, str(stats.block_size), str(stats.num_blocks)), 1)
        yield config


def registry_of(engine: AsyncEngine) -> CollectorRegistry:
    """A registry of its own for this engine: nothing global."""
    registry = CollectorRegistry()
    registry.register(EngineCollector(engine))
    return registry
