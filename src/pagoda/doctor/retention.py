"""Keeping but a part of each sequence: what it would buy, and what it does where it is on.

    streaming:sinks=4,window=1020       first 4 ............................ last 1,020
                                        stay        found until room is     stay
                                                    wanted, never seen

It gives up text, where all other remedies give up memory, time or a little exactness, so it is
named after them, and for conversations alone that are much longer than what would stay.
"""

from __future__ import annotations

from pagoda.doctor.diagnosis import Advice, Evidence, Finding
from pagoda.doctor.figures import Cache, Traffic
from pagoda.doctor.kept import EVERY_TOKEN
from pagoda.doctor.vocabulary import FLAGS
from pagoda.doctor.wording import count, percent
from pagoda.sizing.measured_cost import told_retention_cost

_SINKS = 4
_LEAST = 1024
"""Tokens that stay at least: what was measured."""
_TIMES = 2
"""A conversation this many times as long as what stays of it is one that would gain."""


def keeping_less(engine: str, traffic: Traffic, cache: Cache) -> list[Advice]:
    """The first tokens and the last ones alone, where sequences are long and the engine can."""
    flag, length = FLAGS[engine].retention, _mean_length(traffic)
    if flag is None or cache.kept is None or cache.kept.num_tokens is not None:
        return []
    if length is None or length < _TIMES * _LEAST:
        return []
    num_tokens = 1 << (int(length / _TIMES).bit_length() - 1)
    name = f"streaming:sinks={_SINKS},window={num_tokens - _SINKS}"
    return [
        Advice(
            "flag",
            "Only where answers do not rest on what came early: keep the first tokens of each "
            f"sequence and its last ones alone, {flag} {name}.",
            f"Of {count(length)} tokens that a sequence comes to in the mean {count(num_tokens)} "
            f"stay, so up to {length / num_tokens:.2g} times as many fit, however long they grow. "
            "What lies between is forgotten, and nothing in it is found again. "
            f"{told_retention_cost()}",
            flag,
            cache.kept.name,
            name,
        )
    ]


def is_longer_than_kept(cache: Cache, mean_prompt: float) -> bool:
    """The server lets go of most prompts' beginnings."""
    kept = cache.kept
    return kept is not None and kept.num_tokens is not None and mean_prompt > kept.num_tokens


def passed_prefix(
    engine: str,
    cache: Cache,
    mean_prompt: float,
    hit_rate: float,
    evidence: tuple[Evidence, ...],
) -> Finding:
    """Long prompts are not found where but a part of each sequence stays."""
    assert cache.kept is not None
    name, num_tokens, flag = cache.kept.name, cache.kept.num_tokens or 0, FLAGS[engine].retention
    summary = (
        f"The server keeps {count(num_tokens)} tokens of each sequence ({name}), prompts have "
        f"{count(mean_prompt)} in the mean, and {percent(hit_rate)} of their tokens were found. "
        "Blocks that a window has passed are the first to be forgotten, so a long beginning that "
        "prompts share is found only while room is left over. A conversation that goes on from the "
        "end of a turn is found all the same."
    )
    advice = Advice(
        "flag",
        "Keep more, where prompts share long beginnings and there is memory: a window as long as "
        f"they are, or {flag} {EVERY_TOKEN}.",
        f"Such a beginning is then computed once. A sequence takes up to "
        f"{mean_prompt / num_tokens:.2g} times the memory; nothing is gained if prompts have "
        "nothing in common.",
        flag,
        name,
        EVERY_TOKEN,
    )
    return Finding("passed_prefix", "note", summary, "medium", (advice,), evidence)


def _mean_length(traffic: Traffic) -> float | None:
    """Tokens of a sequence at its end; None where none has ended."""
    prompt = traffic.prompts.mean if traffic.prompts is not None else None
    answer = traffic.answers.mean if traffic.answers is not None else None
    return None if prompt is None or answer is None else prompt + answer
