"""Requests and choices, found by the ids that plans and callers name."""

from __future__ import annotations

from types import SimpleNamespace

from pagoda.engine.roster import Roster
from pagoda.request import Request, SamplingParams


def assembler_of(request_id: str, sequence_ids: list[int], matcher: object = None):
    request = Request(request_id, (1,), SamplingParams(n=len(sequence_ids)))
    choices = [
        SimpleNamespace(
            sequence=SimpleNamespace(sequence_id=sequence_id, request=request),
            sampling_row=SimpleNamespace(matcher=matcher),
        )
        for sequence_id in sequence_ids
    ]
    return SimpleNamespace(request=request, choices=choices)


def test_choices_are_found_until_their_request_is_removed() -> None:
    roster = Roster()
    plain, bound = assembler_of("plain", [0, 1]), assembler_of("bound", [2, 3], matcher="grammar")
    roster.add(plain)
    roster.add(bound)
    assert list(roster.choices) == [0, 1, 2, 3]
    assert list(roster.constrained) == [2, 3]
    assert roster.assemblers == {"plain": plain, "bound": bound}
    assert roster.remove("bound") == bound.choices
    assert list(roster.choices) == [0, 1]
    assert not roster.constrained
    assert list(roster.assemblers) == ["plain"]


def test_who_is_not_here_has_no_choices() -> None:
    assert list(Roster().remove("nobody")) == []


def test_requests_are_found_by_their_sequences_each_once() -> None:
    roster = Roster()
    first, second = assembler_of("first", [0, 1]), assembler_of("second", [2])
    roster.add(first)
    roster.add(second)
    assert roster.requests_of([1, 9, 0, 2]) == [first.request, second.request]
