"""What a lexeme of GBNF matches, character by character."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from pagoda.engine.gbnf.positions import NOTHING, Effort, Part, Positions, bits_of
from pagoda.engine.gbnf.signs import is_negated, ranges_of, said_of
from pagoda.engine.gbnf.tree import Token

_END = 0x110000
"""Behind the last character."""


class Alphabet:
    """The characters in as many kinds as a grammar tells apart, each of them a bit."""

    def __init__(self, tokens: Iterable[Token]) -> None:
        cuts = {0, _END}
        for token in tokens:
            for low, high in _ranges(token):
                cuts |= {ord(low), ord(high) + 1}
        self._cuts = sorted(cuts)
        self._all = self._between(0, _END)

    def of(self, token: Token) -> int:
        """What a class or a dot stands for."""
        if token.kind == "any":
            return self._all
        kinds = 0
        for low, high in ranges_of(token):
            kinds |= self._between(ord(low), ord(high) + 1)
        return self._all & ~kinds if is_negated(token) else kinds

    def of_character(self, character: str) -> int:
        """A character of a text."""
        return self._between(ord(character), ord(character) + 1)

    def _between(self, start: int, end: int) -> int:
        return (1 << bisect_left(self._cuts, end)) - (1 << bisect_left(self._cuts, start))


@dataclass(frozen=True, slots=True)
class Automaton:
    """What a lexeme matches: kinds of characters at each place, and what comes behind."""

    whole: Part
    kinds: list[int]
    behind: list[int]

    @property
    def beginnings(self) -> int:
        """The characters that a match may begin with."""
        return self.kinds_at(self.whole.first)

    def kinds_at(self, places: int) -> int:
        """The characters of any of these places."""
        kinds = 0
        for place in bits_of(places):
            kinds |= self.kinds[place]
        return kinds


def automaton_of(make: Callable[[Positions[int]], Part], effort: Effort) -> Automaton:
    """The automaton of the places that `make` makes."""
    positions: Positions[int] = Positions(effort)
    whole = make(positions)
    return Automaton(whole, positions.symbols, positions.behind)


def text_part(positions: Positions[int], text: str, alphabet: Alphabet) -> Part:
    """The places of a text, one behind the other."""
    part = NOTHING
    for character in text:
        part = positions.joined(part, positions.one(alphabet.of_character(character)))
    return part


@dataclass(frozen=True, slots=True)
class Meeting:
    """Two automata that read the same characters from the same place on."""

    goes_on_with: int
    """Characters with which the second may go on where the first is complete, as bits."""
    are_both_complete: bool
    """Behind the same characters."""


def meeting_of(one: Automaton, other: Automaton, effort: Effort) -> Meeting:
    """Looks at all pairs of places that the same characters lead to."""
    waiting = [(one.whole.first, other.whole.first)]
    seen: set[tuple[int, int]] = set()
    goes_on_with, are_both_complete = 0, False
    while waiting:
        here, there = waiting.pop()
        for place in bits_of(here):
            for beside in bits_of(there):
                effort.take()
                if (place, beside) in seen or not one.kinds[place] & other.kinds[beside]:
                    continue
                seen.add((place, beside))
                if one.whole.last >> place & 1:
                    goes_on_with |= other.kinds_at(other.behind[beside])
                    are_both_complete |= bool(other.whole.last >> beside & 1)
                waiting.append((one.behind[place], other.behind[beside]))
    return Meeting(goes_on_with, are_both_complete)


def _ranges(token: Token) -> Iterable[tuple[str, str]]:
    if token.kind == "text":
        return ((each, each) for each in said_of(token))
    return ranges_of(token) if token.kind == "characters" else ()
