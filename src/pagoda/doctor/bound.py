"""What the engine's time goes into: prompts (prefill) or answers (decode).

A step that computes few tokens takes as long as reading the weights; from B tokens on, B being what
the machine multiplies while it reads (its arithmetic intensity), time grows with the tokens. So

    prefill's share  =  P / (P + D × max(B, R))

with P tokens of prompts computed, R requests in work, and D steps that the answers need: tokens
generated over R. B is 20 on a processor and 300 on an accelerator, or so; where the share is on
the same side of a half for both, the answer does not depend on it. Also, prefill cannot take more
of the time than all requests' prefill times added up, which are told of those that ended: it says
something only where nearly all of those that got their first token also ended.

Where the accelerator is known, so is B: what it multiplies for each byte, or half of that, since
no kernel reaches the catalogue's figure. Where it is not, and the answer depends on it, how long
steps took beside what they held says more (`step_cost`).
"""

from __future__ import annotations

from pagoda.doctor.diagnosis import Answer, Confidence, Evidence
from pagoda.doctor.figures import Cache, Traffic
from pagoda.doctor.headroom import has_room, is_held_back
from pagoda.doctor.wording import count, percent, seconds

_INTENSITIES = (20, 300)
"""Tokens a step from which computing takes longer than reading: of processors, of accelerators."""
_HALF = 0.5
_FEW_REQUESTS = 3
_NEARLY_ALL = 0.9


def bound(engine: str, traffic: Traffic, cache: Cache, share: tuple[float, float]) -> Answer:
    """Whether prefill, decode or a full house bounds the engine, or nothing does.

    `share` is what `prefill_share` says.
    """
    if traffic.is_stalled:
        return _stalled(engine, traffic)
    if traffic.is_idle:
        return _idle(engine, traffic)
    low, high = share
    evidence = _evidence(engine, traffic, cache)
    load = f"The engine worked {percent(traffic.busy_share)} of the time. "
    took = f"{load}Prompts took {_shown(low, high)} of that"
    if low > _HALF:
        summary = f"{took}: computing them bounds it."
        return Answer("bound", "prefill", summary, _sure(low > 0.6), evidence)
    if high < _HALF and is_held_back(traffic, cache) and has_room(traffic, cache):
        summary = (
            f"{took}. Answers took the rest, in {count(traffic.running.most)} sequences at once "
            f"and never more, while {count(traffic.waiting.mean)} requests waited."
        )
        return Answer("bound", "queue", summary, "medium", evidence)
    if high < _HALF:
        summary = f"{took}: answers bound it, a token at a time."
        return Answer("bound", "decode", summary, _sure(high < 0.4), evidence)
    return _between(took, traffic, evidence)


def _between(took: str, traffic: Traffic, evidence: tuple[Evidence, ...]) -> Answer:
    """Which it is depends on the machine; how long steps took may tell."""
    fitted = traffic.prompt_time
    if fitted is not None and abs(fitted.share - _HALF) > fitted.error:
        verdict, what = ("prefill", "prompts") if fitted.share > _HALF else ("decode", "answers")
        summary = f"{took}, about {percent(fitted.share)} by how long steps took: {what} bound it."
        return Answer("bound", verdict, summary, "low", evidence)
    summary = (
        f"{took}, the more the slower the machine computes beside reading: on a processor they "
        "may bound it, on an accelerator answers may. --gpu tells which it is."
    )
    return Answer("bound", "mixed", summary, "low", evidence)


def _shown(low: float, high: float) -> str:
    return percent(low) if percent(low) == percent(high) else f"{percent(low)} to {percent(high)}"


def prefill_share(
    traffic: Traffic, cache: Cache, intensity: float | None = None
) -> tuple[float, float]:
    """The least and the most of its working time that the engine spends on prompts.

    `intensity` is the machine's, in operations a byte, or None where the machine is not known.
    """
    # What is computed again after a preemption is computed as a prompt is.
    computed = traffic.computed_tokens + (cache.recomputed_tokens or 0.0)
    low, high = _shares(traffic, computed, intensity)
    enough = max(_FEW_REQUESTS, _NEARLY_ALL * traffic.num_started)
    if traffic.num_requests >= enough and traffic.busy_s > 0:
        most = traffic.prefill_s / traffic.busy_s
        low, high = min(low, most), min(high, most)
    return low, high


def recompute_share(
    traffic: Traffic, recomputed: float, intensity: float | None = None
) -> tuple[float, float]:
    """The least and the most of its working time that went into computing so many tokens again."""
    once = traffic.computed_tokens
    low, high = _shares(traffic, once + recomputed, intensity)
    part = recomputed / (once + recomputed) if recomputed > 0 else 0.0
    return low * part, high * part


def _shares(traffic: Traffic, computed: float, intensity: float | None) -> tuple[float, float]:
    """The formula above, for a machine that is not known or one that is."""
    intensities = _INTENSITIES if intensity is None else (intensity / 2, intensity)
    running = max(traffic.mean_running, 1.0)
    steps = traffic.generated_tokens / running
    if traffic.steps is not None:
        steps = min(steps, traffic.steps.count)
    if computed + steps == 0:
        return 0.0, 0.0
    high, low = (computed / (computed + steps * max(tokens, running)) for tokens in intensities)
    return low, high


def _sure(is_clear: bool) -> Confidence:
    return "high" if is_clear else "medium"


def _stalled(engine: str, traffic: Traffic) -> Answer:
    held = traffic.running.mean + traffic.waiting.mean
    summary = f"{count(held)} requests were there, and no token in {seconds(traffic.duration_s)}."
    return Answer("bound", "stalled", summary, "low", _generated(engine, traffic))


def _idle(engine: str, traffic: Traffic) -> Answer:
    summary = (
        f"Next to nothing was asked in {seconds(traffic.duration_s)}: watch it while it works."
    )
    return Answer("bound", "idle", summary, "high", _generated(engine, traffic))


def _generated(engine: str, traffic: Traffic) -> tuple[Evidence, ...]:
    name, tokens = f"{engine}:generation_tokens_total", traffic.generated_tokens
    return (Evidence(name, tokens, "tokens", "generated"),)


def _evidence(engine: str, traffic: Traffic, cache: Cache) -> tuple[Evidence, ...]:
    shown = [
        Evidence(
            f"{engine}:prompt_tokens_by_source_total",
            traffic.computed_tokens,
            "tokens",
            "of prompts computed",
        ),
        Evidence(
            f"{engine}:generation_tokens_total", traffic.generated_tokens, "tokens", "generated"
        ),
        Evidence(
            f"{engine}:num_requests_running", traffic.mean_running, "requests", "in work at a time"
        ),
        Evidence(
            f"{engine}:num_requests_waiting", traffic.waiting.mean, "requests", "waiting at a time"
        ),
        Evidence(
            f"{engine}:request_prefill_time_seconds_sum",
            traffic.prefill_s,
            "s",
            "from first step to first token, of all requests that ended",
        ),
        Evidence(
            f"{engine}:request_decode_time_seconds_sum",
            traffic.decode_s,
            "s",
            "from first token to last, of the same",
        ),
    ]
    if traffic.prompt_time is not None:
        fitted = traffic.prompt_time
        meaning = f"of the time for prompts, fitted; give or take {percent(fitted.error)}"
        shown.append(Evidence(f"{engine}:iteration_tokens_total", fitted.share, "share", meaning))
    if traffic.steps is not None and traffic.steps.mean is not None:
        shown.append(
            Evidence(
                f"{engine}:iteration_tokens_total",
                traffic.steps.mean,
                "tokens",
                f"a step, in {count(traffic.steps.count)} steps",
            )
        )
    return tuple(shown)
