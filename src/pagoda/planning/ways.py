"""What would make a plan fit that does not: single changes, those that certainly do told apart.

What activations and the runtime take is a range, so a change may fit certainly (where they take
most) or perhaps (where they take least).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pagoda.planning.pagoda import pagoda_device
from pagoda.planning.plan import LongestRequests, longest_requests, plan_that_starts
from pagoda.planning.request import ModelFacts, PlanRequest
from pagoda.planning.tables import find_accelerator

SMALL_CHECKPOINT = "a checkpoint in 4 bits"
INT4_WEIGHTS: Mapping[str, Any] = {"quantization": "gptq"}
"""What such a checkpoint is planned for as, since every GPU takes it: no flag makes one of plain
numbers."""
PAGODA_WEIGHTS = ("q8_0", "q4_k")
"""What is worth a try with Pagoda on CPUs."""
_LENGTHS = (32_768, 8192, 2048)


@dataclass(frozen=True, slots=True)
class Way:
    """One flag, with its least drastic value that certainly fits, and that perhaps does."""

    name: str
    certain: Any | None
    perhaps: Any | None
    """None where it is not less drastic than the certain one."""


def ways_to_fit(
    facts: ModelFacts, request: PlanRequest, draft: ModelFacts | None = None
) -> tuple[Way, ...]:
    """The flags that would help, each alone."""
    found = (
        _way(name, values, facts, request, draft)
        for name, values in _tried(facts, request, draft).items()
    )
    return tuple(way for way in found if way.certain is not None or way.perhaps is not None)


def told(ways: Iterable[Way], request: PlanRequest) -> str:
    """The ways in words, of a request that does not fit."""
    is_exact = request.states_cache  # nothing is open
    listed = list(ways)
    certain = [_certain(way, is_exact=is_exact) for way in listed if way.certain is not None]
    perhaps = [flags_of({way.name: way.perhaps}) for way in listed if way.certain is None]
    if not certain:
        none = f"{_tried_in_vain(request)} alone certainly makes it fit"
        return f"{none}; perhaps {' or '.join(perhaps)} does" if perhaps else none
    sure = f"It certainly fits with {' or '.join(certain)}"
    return f"{sure}; perhaps with {' or '.join(perhaps)}" if perhaps else sure


def flags_of(change: Mapping[str, Any]) -> str:
    """A change as it is typed; a checkpoint in 4 bits is none that a flag makes."""
    if change == INT4_WEIGHTS:
        return SMALL_CHECKPOINT
    return " ".join(f"--{name.replace('_', '-')} {value}" for name, value in change.items())


def _tried_in_vain(request: PlanRequest) -> str:
    """Pagoda runs on one device, and quantises weights on CPUs alone."""
    length = f"length of {min(_LENGTHS):,} or more"
    if not request.planned_engine.is_pagoda:
        return f"None of parallelism, quantization and a {length}"
    device = None if request.gpu is None else find_accelerator(request.gpu)
    on_cpu = pagoda_device(device).policy.kind == "CPU"
    return f"Neither quantization nor a {length}" if on_cpu else f"No {length}"


def _certain(way: Way, *, is_exact: bool) -> str:
    words = flags_of({way.name: way.certain})
    if way.perhaps is None:
        return words
    if way.name != "max_model_len":
        both_named = isinstance(way.perhaps, str)
        other = flags_of({way.name: way.perhaps}) if both_named else str(way.perhaps)
        return f"{words} (perhaps with {other})"
    if is_exact:
        return f"{words} (the engine starts with up to {way.perhaps}, and keeps a block to itself)"
    return f"{words} (perhaps with up to {way.perhaps})"


def _tried(
    facts: ModelFacts, request: PlanRequest, draft: ModelFacts | None
) -> dict[str, list[Any]]:
    """Values of each flag, the least drastic first."""
    tried: dict[str, list[Any]] = {}
    if not request.planned_engine.is_pagoda:
        size = request.tensor_parallel_size
        tried["tensor_parallel_size"] = [size * 2**n for n in range(1, 5)]
        tried["quantization"] = ["fp8", INT4_WEIGHTS["quantization"]]
    else:
        tried["quantization"] = list(PAGODA_WEIGHTS)
    if request.context is None or request.max_model_len is None:
        tried["max_model_len"] = _lengths(longest_requests(facts, request, draft))
    return tried


def _lengths(longest: LongestRequests) -> list[int]:
    worth_it = {length for length in (longest.perhaps, longest.certain) if length >= min(_LENGTHS)}
    return sorted(worth_it.union(_LENGTHS), reverse=True)


def _way(
    name: str,
    values: Iterable[Any],
    facts: ModelFacts,
    request: PlanRequest,
    draft: ModelFacts | None,
) -> Way:
    perhaps: Any | None = None
    for value in values:
        plan = plan_that_starts(facts, replace(request, **{name: value}), draft)
        if plan is None or plan.low is None:
            continue
        if plan.low.concurrency >= 1 and not _needs_all(name, value, facts, request, draft):
            return Way(name, value, perhaps)
        perhaps = value if perhaps is None else perhaps
    return Way(name, None, perhaps)


def _needs_all(
    name: str, length: Any, facts: ModelFacts, request: PlanRequest, draft: ModelFacts | None
) -> bool:
    """Whether a request would also need the block that the engine keeps to itself."""
    return name == "max_model_len" and length > longest_requests(facts, request, draft).certain
