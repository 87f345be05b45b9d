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


class StopString:
    """One stop string, and for each of its beginnings the longest that is also its proper end.

    These borders are worked out as far as a text has come up to them, once for all the choices of a
    request: most stop strings are never begun.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self._borders = [0]

    def next(self, matched: int, character: str) -> int:
        """How much of it a text ends with that ended with `matched` of it, one character on."""
        while matched and self.text[matched] != character:
            matched = self.border(matched)
        return matched + 1 if self.text[matched] == character else 0

    def border(self, length: int) -> int:
        """Of its first `length` characters, how many at the beginning are also at the end."""
        text, borders = self.text, self._borders
        while len(borders) < length:
            character, border = text[len(borders)], borders[-1]
            while border and text[border] != character:
                border = borders[border - 1]
            borders.append(border + 1 if text[border] == character else 0)
        return borders[length - 1]


class StopStrings:
    """Knuth, Morris and Pratt's automaton for each stop string, over everything fed so far.

    A character costs a step per stop string, however long those are, and a piece without any of
    their first characters costs one look.
    """

    def __init__(self, stops: Sequence[StopString]) -> None:
        self._stops = tuple(stops)
        self._matched = [0] * len(self._stops)
        self._first_characters = frozenset(stop.text[0] for stop in self._stops)

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
        for index, stop in enumerate(self._stops):
            matched = stop.next(self._matched[index], character)
            if matched == len(stop.text):
                complete.append(stop.text)
                matched = stop.border(matched)
            self._matched[index] = matched
        return complete
