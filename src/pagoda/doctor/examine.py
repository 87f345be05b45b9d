"""From scrapes to a diagnosis.

scrapes ──> Window ──> Traffic, Cache ──> bound ──> bandwidth ──> findings ──> cache ──> next
"""

from __future__ import annotations

from pagoda.doctor.bandwidth import Machine, bandwidth, reading_of
from pagoda.doctor.bound import bound, prefill_share
from pagoda.doctor.cache import cache_answer
from pagoda.doctor.cache_size import cache_size
from pagoda.doctor.diagnosis import Diagnosis, Finding
from pagoda.doctor.figures import Cache, Traffic, cache_of, traffic_of
from pagoda.doctor.preemption import preemption
from pagoda.doctor.prefix import prefix
from pagoda.doctor.queueing import queueing
from pagoda.doctor.remedy import next_win
from pagoda.doctor.standstill import standstill
from pagoda.doctor.window import Window

_WANTED = (
    *("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "cache_config_info"),
    *("num_preemptions_total", "prefix_cache_queries_total", "prefix_cache_hits_total"),
    *("generation_tokens_total", "prompt_tokens_by_source_total", "request_success_total"),
    *("iteration_tokens_total", "request_prompt_tokens", "request_generation_tokens"),
    *("request_prefill_time_seconds", "request_decode_time_seconds", "time_to_first_token_seconds"),
)
"""What every answer rests on. Counters have `_total`, except in the name of the histogram."""


def examine(window: Window, machine: Machine | None = None) -> Diagnosis:
    """What the scrapes of one server say; `machine` tells what metrics do not."""
    machine = machine or Machine()
    traffic, cache = traffic_of(window), cache_of(window)
    share = prefill_share(traffic, cache, machine.intensity)
    bound_by = bound(window.engine, traffic, cache, share)
    is_decode = bound_by.verdict in ("decode", "queue")
    answers = (bound_by, bandwidth(window, traffic, cache, machine, is_decode))
    findings = _findings(window, traffic, cache, machine, bound_by.verdict, share)
    reading = reading_of(traffic, cache, machine, max(len(window.engines), 1))
    answer, advice = next_win(
        window.engine, traffic, cache, answers, findings, share, reading if is_decode else None
    )
    return Diagnosis(
        engine=window.engine,
        model_name=window.model_name,
        engines=tuple(window.engines),
        duration_s=window.duration_s,
        num_scrapes=window.num_scrapes,
        num_restarts=window.num_restarts,
        answers=(*answers, cache_answer(window.engine, traffic, cache, findings), answer),
        findings=findings,
        advice=advice,
        missing=tuple(f"{window.engine}:{name}" for name in _WANTED if not window.has(name)),
    )


def _findings(
    window: Window,
    traffic: Traffic,
    cache: Cache,
    machine: Machine,
    verdict: str,
    share: tuple[float, float],
) -> tuple[Finding, ...]:
    """What should change comes first, the worst of it before the rest."""
    found = [_restarted(window), standstill(window.engine, traffic)]
    if not traffic.is_idle:
        found += [
            preemption(window.engine, traffic, cache, machine),
            queueing(window.engine, traffic, cache, verdict),
            prefix(window.engine, traffic, cache, share),
            cache_size(window.engine, traffic, cache, share),
        ]
    findings = [finding for finding in found if finding is not None]
    return tuple(sorted(findings, key=lambda finding: finding.severity == "note"))


def _restarted(window: Window) -> Finding | None:
    if not window.num_restarts:
        return None
    summary = "The server began anew while it was watched; what came before is counted too."
    return Finding("restarted", "note", summary, "high")
