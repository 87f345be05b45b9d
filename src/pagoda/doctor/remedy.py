"""Where nothing is wrong: what the next win would be all the same."""

from __future__ import annotations

from pagoda.doctor.bandwidth import Reading
from pagoda.doctor.diagnosis import Advice, Answer, Finding
from pagoda.doctor.figures import Cache, Traffic
from pagoda.doctor.headroom import narrower_format
from pagoda.doctor.vocabulary import FLAGS
from pagoda.doctor.wording import count, percent
from pagoda.sizing.measured_cost import told_cost

_FEW_TOKENS = 16
"""A step of so few leaves most of any machine's arithmetic unused."""
_BUSY = 0.5
"""Share of the time that an engine with much to spare works."""
_MUCH_KV = 0.25
"""Share of what a step reads from which on narrower K and V are worth their risk."""


def next_win(
    engine: str,
    traffic: Traffic,
    cache: Cache,
    answers: tuple[Answer, Answer],
    findings: tuple[Finding, ...],
    prefill_share: tuple[float, float],
    reading: Reading | None,
) -> tuple[Answer, tuple[Advice, ...]]:
    """What to do next: mend what was found, else what the bound asks for.

    `answers` are those on the bound and on the bandwidth.
    """
    changes = [finding for finding in findings if finding.severity == "change"]
    for finding in changes:
        if finding.advice:
            first = finding.advice[0]
            summary = f"{first.action} {first.effect}"
            return Answer("next", first.kind, summary, finding.confidence), finding.advice
    also = tuple(one for finding in findings for one in finding.advice)
    if answers[0].verdict == "stalled":
        return Answer("next", also[0].kind, f"{also[0].action} {also[0].effect}", "low"), also
    if answers[0].verdict == "idle":
        return Answer("next", "none", "Nothing: there was no work to judge by.", "high"), ()
    advice = (*_for_bound(engine, traffic, cache, answers, prefill_share, reading), *also)
    first = advice[0]
    return Answer("next", first.kind, f"{first.action} {first.effect}", "medium"), advice


def _for_bound(
    engine: str,
    traffic: Traffic,
    cache: Cache,
    answers: tuple[Answer, Answer],
    prefill_share: tuple[float, float],
    reading: Reading | None,
) -> tuple[Advice, ...]:
    """What widens the narrowest place; where there is none, more load."""
    bound, bandwidth = answers
    spare = [_spare(traffic)] if traffic.busy_share < _BUSY and traffic.waiting.mean < 1 else []
    if bound.verdict == "prefill":
        return (*spare, _compute(prefill_share))
    if bound.verdict == "mixed":
        return (*spare, _both())
    return (*spare, *_for_decode(engine, traffic, cache, bandwidth, reading))


def _spare(traffic: Traffic) -> Advice:
    return Advice(
        "load",
        f"More requests: the engine stood still {percent(1 - traffic.busy_share)} of the time.",
        "Nothing has to change for them until it works all the time.",
    )


def _compute(prefill_share: tuple[float, float]) -> Advice:
    least = prefill_share[0]
    return Advice(
        "hardware",
        "Hardware that computes faster, or fewer tokens in prompts: no flag makes them cheaper.",
        f"Twice the matrix products a second give at least {1 / (1 - least / 2):.1f} times the "
        "requests.",
    )


def _both() -> Advice:
    return Advice(
        "hardware",
        "No single thing: prompts and answers both take a good part of the time.",
        "A machine that both computes and reads faster gives as much as it is faster.",
    )


def _for_decode(
    engine: str, traffic: Traffic, cache: Cache, bandwidth: Answer, reading: Reading | None
) -> tuple[Advice, ...]:
    flags = FLAGS[engine]
    advice: list[Advice] = []
    if bandwidth.verdict == "far" and traffic.mean_running >= 2:
        advice.append(_overhead(engine))
    found = narrower_format(engine, cache)
    if found is not None and reading is not None and reading.kv_share >= _MUCH_KV:
        share = reading.kv_share * (1 - 1 / found.times)
        advice.append(
            Advice(
                "flag",
                f"Store K and V in fewer bytes: {flags.kv_dtype} {found.dtype}.",
                f"A step reads {percent(share)} less, so answers come up to "
                f"{percent(1 / (1 - share) - 1)} faster. {told_cost(found.dtype)}",
                flags.kv_dtype,
                cache.dtype,
                found.dtype,
            )
        )
    tokens = traffic.steps.mean if traffic.steps is not None else None
    if tokens is not None and tokens <= _FEW_TOKENS and traffic.waiting.mean < 1:
        advice.append(
            Advice(
                "load",
                f"More requests at once, if there are any: a step has but {count(tokens)} tokens.",
                "Twice as many cost a step little more time, while reading the weights bounds it.",
            )
        )
    effect = "Answers come as much faster as bytes are fewer, or memory faster."
    ways = [f"fewer bytes of weights ({flags.quantization})"]
    ways += [f"several tokens a step ({flags.speculation})"] if flags.speculation else []
    action = f"For a single answer to come faster: {', '.join(ways)}, or faster memory."
    advice.append(Advice("hardware", action, effect))
    return tuple(advice)


def _overhead(engine: str) -> Advice:
    causes = {
        "pagoda": "other processes on its cores, fewer --threads than cores",
        "vllm": "--enforce-eager, other processes on its cores, a busy API server",
    }[engine]
    return Advice(
        "software",
        f"Find what the time goes into besides reading: {causes}.",
        "Up to what the memory can deliver.",
    )
