"""Requests that are in work or wait, and nothing comes of them."""

from __future__ import annotations

from pagoda.doctor.diagnosis import Advice, Evidence, Finding
from pagoda.doctor.figures import Traffic
from pagoda.doctor.wording import count, seconds

_LONGEST_STEP_S = 20.0
"""A step may take seconds, on a processor with a long prompt; this long it does not."""


def standstill(engine: str, traffic: Traffic) -> Finding | None:
    """Nothing moves although there is work; None where there is none, or it moves."""
    if not traffic.is_stalled:
        return None
    summary = (
        f"{count(traffic.running.mean)} requests run and {count(traffic.waiting.mean)} wait, and "
        f"no token came of them in {seconds(traffic.duration_s)}."
    )
    is_long = traffic.duration_s >= _LONGEST_STEP_S
    advice = Advice(
        "software",
        "Look at the server's log: it may hang." if is_long else "Watch it for longer.",
        "A step with a long prompt may take some seconds, in which no counter moves.",
    )
    evidence = (
        Evidence(f"{engine}:num_requests_running", traffic.running.least, "requests", "at least"),
        Evidence(f"{engine}:num_requests_waiting", traffic.waiting.least, "requests", "at least"),
    )
    return Finding(
        "no_progress", "change" if is_long else "note", summary, "low", (advice,), evidence
    )
