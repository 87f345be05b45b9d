"""`/metrics` for Prometheus: statistics under vLLM's names, prefix `pagoda:`.

    AsyncEngine.stats(), .timeline ──┐
    Admission, Traffic ──────────────┴──> Figures ──> a row a metric ──> /metrics

The figures are read when they are asked for; nothing is counted here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, cast

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from pagoda.server.admission import Admission
from pagoda.server.metric_rows import METRIC_ROWS, Figures, LabelValues, MetricRow
from pagoda.server.traffic import Traffic

if TYPE_CHECKING:
    from pagoda.engine.async_engine import AsyncEngine
    from pagoda.engine.histogram import Histogram

PREFIX = "pagoda:"
COMMON_LABELS = ("model_name", "engine")
_ENGINE = "0"
_FAMILIES: Mapping[str, type[GaugeMetricFamily] | type[CounterMetricFamily]] = {
    "gauge": GaugeMetricFamily,
    "counter": CounterMetricFamily,
}


class MetricsCollector(Collector):
    """Tells Prometheus what the rows read."""

    def __init__(self, engine: AsyncEngine, admission: Admission, traffic: Traffic) -> None:
        self._engine = engine
        self._admission = admission
        self._traffic = traffic

    def collect(self) -> Iterator[Metric]:
        """Every metric: numbers from one snapshot of the engine, histograms as they are now."""
        engine = self._engine
        figures = Figures(
            stats=engine.stats(),
            stored=engine.stored,
            timeline=engine.timeline,
            curve=engine.curve,
            block_lives=engine.block_lives,
            admission=self._admission,
            traffic=self._traffic,
            transfers=engine.transfers.stats(),
            usage=engine.usage(),
            step_age_s=engine.step_age_s,
        )
        common = (engine.model_name, _ENGINE)
        for row in METRIC_ROWS:
            if row.kind == "histogram":
                yield _histogram(row, cast("Histogram", row.read(figures)), common)
            else:
                yield _numbers(row, row.read(figures), common)


def registry_of(engine: AsyncEngine, admission: Admission, traffic: Traffic) -> CollectorRegistry:
    """A registry of its own for this server: nothing global."""
    registry = CollectorRegistry()
    registry.register(MetricsCollector(engine, admission, traffic))
    return registry


def _numbers(row: MetricRow, read: Any, common: LabelValues) -> Metric:
    labels = (*COMMON_LABELS, *row.labels)
    family = _FAMILIES[row.kind](f"{PREFIX}{row.name}", row.help, labels=labels)
    by_labels: Mapping[LabelValues, float] = read if row.labels else {(): read}
    for values, number in by_labels.items():
        family.add_metric((*common, *values), number)
    return family


def _histogram(row: MetricRow, histogram: Histogram, common: LabelValues) -> Metric:
    family = HistogramMetricFamily(f"{PREFIX}{row.name}", row.help, labels=COMMON_LABELS)
    total = histogram.total
    buckets = [(_written(bound), count) for bound, count in histogram.cumulative()]
    family.add_metric(common, buckets, total)
    return family


def _written(bound: float) -> str:
    return "+Inf" if bound == math.inf else str(float(bound))
