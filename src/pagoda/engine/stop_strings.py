"""Finds stop strings in text that arrives piece by piece."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StopMatch:
    """The first stop string to be complete; of several that end together, the longest."""

    stop: str
    end: int
    """Where it ends in the piece of text that completed it."""


class StopStrings:
    """Knuth, Morris and Pratt's automaton for each stop string, over everything fed so far.

    A character costs a step per stop string, however long those are, and a piece without any of
    their first characters costs one look.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._borders = [_borders(stop) for stop in self._stops]
        self._matched = [0] * len(self._stops)
        self._first_characters = frozenset(stop[0] for stop in self._stops)

    @property
    def num_held(self) -> int:
        """Characters at the end of the text that may be the beginning of a stop string."""
        return max(self._matched, default=0)

    def feed(self, piece: str, may_stop: bool = True) -> StopMatch | None:
        """Go on by `piece`, or up to the first match in it. Matches are passed over, but their
        beginnings are kept, while `may_stop` is false."""
        if not any(self._matched) and self._first_characters.isdisjoint(piece):
            return None
        for end, character in enumerate(piece, 1):
            complete = self._advance(character)
            if complete and may_stop:
                return StopMatch(max(complete, key=len), end)
        return None

    def _advance(self, character: str) -> list[str]:
        """The stop strings that end with this character."""
        complete = []
        for index, (stop, borders) in enumerate(zip(self._stops, self._borders, strict=True)):
            matched = self._matched[index]
            while matched and stop[matched] != character:
                matched = borders[matched - 1]
            if stop[matched] == character:
                matched += 1
            if matched == len(stop):
                complete.append(stop)
                matched = borders[-1]
            self._matched[index] = matched
        return complete


def _borders(stop: str) -> list[int]:
    """For each beginning of `stop`: the length of the longest that is also its proper end."""
    borders = [0] * len(stop)
    matched = 0
    for end in range(1, len(stop)):
        while matched and stop[matched] != stop[end]:
            matched = borders[matched - 1]
        if stop[matched] == stop[end]:
            matched += 1
        borders[end] = matched
    return borders
