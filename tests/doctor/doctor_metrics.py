"""Metrics of servers, for tests of the doctor: what was read of real ones, and made-up ones."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pagoda.doctor import Diagnosis, Machine, Scrape, Window, examine, read_scrape

READINGS = Path(__file__).parent / "doctor_readings"
"""Written by `benchmarks/doctor.py --record`, from SmolLM2-135M on two cores."""
URL = "http://127.0.0.1:8000/metrics"
NO_LABELS: Mapping[str, object] = MappingProxyType({})


def recorded(name: str) -> list[Scrape]:
    """What a server's `/metrics` gave, one scrape after the other."""
    return list(_scrapes_of(name))


@cache
def _scrapes_of(name: str) -> tuple[Scrape, ...]:
    return tuple(scrapes_of(texts_of(json.loads((READINGS / f"{name}.json").read_text()))))


def examined(scrapes: Sequence[Scrape], machine: Machine | None = None) -> Diagnosis:
    return examine(Window(scrapes), machine)


def texts_of(reading: Mapping[str, Any]) -> list[tuple[float, str]]:
    """Times and texts of a recording."""
    return [
        (time, "\n".join(f"{name} {_at(row, index)!r}" for name, row in reading["series"].items()))
        for index, time in enumerate(reading["times"])
    ]


def _at(row: Any, index: int) -> float:
    return float(row[index] if type(row) is list else row)


def scrapes_of(texts: Iterable[tuple[float, str]]) -> Iterable[Scrape]:
    return (read_scrape(f"{text}\n", time_s, URL) for time_s, text in texts)


class MadeUpServer:
    """Counts as an engine would, second by second; `scrapes` are taken after each."""

    def __init__(
        self,
        engine: str = "pagoda",
        block_size: int = 16,
        num_blocks: int = 512,
        labels: Mapping[str, object] = NO_LABELS,
    ) -> None:
        """`labels`: what else `cache_config_info` tells."""
        self.engine = engine
        layout = {"block_size": block_size, "num_gpu_blocks": num_blocks, **labels}
        facts = ",".join(f'{name}="{value}"' for name, value in layout.items())
        self.values: dict[str, float] = {
            **dict.fromkeys(("num_requests_running", "num_requests_waiting"), 0.0),
            "kv_cache_usage_perc": 0.0,
            **dict.fromkeys(COUNTERS, 0.0),
            'prompt_tokens_by_source_total{source="local_compute"}': 0.0,
            'request_success_total{finished_reason="length"}': 0.0,
            f"cache_config_info{{{facts}}}": 1.0,
        }
        self.scrapes: list[Scrape] = []
        self.begin()

    def begin(self) -> None:
        """Time begins now, with what there is."""
        self.scrapes.clear()
        self.scrapes.append(self._scrape())

    def second(self, gauges: Mapping[str, float], **counts: float) -> None:
        """One more second, in which gauges take these values and counters rise by those."""
        self.values.update(gauges)
        for name, rise in counts.items():
            key = {
                "computed": 'prompt_tokens_by_source_total{source="local_compute"}',
                "finished": 'request_success_total{finished_reason="length"}',
            }.get(name, name)
            self.values[key] += rise
        self.scrapes.append(self._scrape())

    def restart(self) -> None:
        """Everything that is counted begins anew."""
        for name in self.values:
            if "_total" in name or name.endswith(("_sum", "_count")):
                self.values[name] = 0.0

    def _scrape(self) -> Scrape:
        time_s = float(len(self.scrapes))
        return read_scrape(text_of(self.engine, self.values), time_s, URL)


_HISTOGRAMS = (
    *("iteration_tokens_total", "request_prompt_tokens", "request_generation_tokens"),
    *("request_queue_time_seconds", "request_prefill_time_seconds", "request_decode_time_seconds"),
    "time_to_first_token_seconds",
)
COUNTERS = (
    *("generation_tokens_total", "prefix_cache_queries_total", "prefix_cache_hits_total"),
    "num_preemptions_total",
    *(f"{name}_{part}" for name in _HISTOGRAMS for part in ("sum", "count")),
)


def text_of(engine: str, values: Mapping[str, float], more: Sequence[str] = ()) -> str:
    """Prometheus' text for series of one model."""
    lines = [f"{_series(engine, name)} {value!r}" for name, value in values.items()]
    return "\n".join([*lines, *more]) + "\n"


def _series(engine: str, name: str) -> str:
    bare, _, labels = name.rstrip("}").partition("{")
    whole = ",".join(filter(None, ['model_name="m"', 'engine="0"', labels]))
    return f"{engine}:{bare}{{{whole}}}"
