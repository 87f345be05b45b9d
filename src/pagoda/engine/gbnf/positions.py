"""Places in a rule of GBNF and which may come behind which, as in Glushkov's automaton."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from pagoda.engine.gbnf.tree import Choice, Item, Token

Symbol = TypeVar("Symbol")

_MAX_PLACES = 4000
"""In a rule or a lexeme: as many bits are quick to go through."""


class TooMuchError(Exception):
    """It takes longer than it may."""


class Effort:
    """Steps that are left."""

    def __init__(self, num_steps: int) -> None:
        self._num_left = num_steps

    def take(self, num_steps: int = 1) -> None:
        """Raises `TooMuchError` where so many are not left."""
        self._num_left -= num_steps
        if self._num_left < 0:
            raise TooMuchError


class Part(NamedTuple):
    """A piece of a rule; the places are bits."""

    may_be_empty: bool
    first: int
    last: int


NOTHING = Part(True, 0, 0)


@dataclass(slots=True)
class Positions(Generic[Symbol]):
    """What stands at each place, and the places that may come behind it, as bits."""

    effort: Effort
    symbols: list[Symbol] = field(default_factory=list)
    behind: list[int] = field(default_factory=list)

    def one(self, symbol: Symbol, may_be_empty: bool = False) -> Part:
        """A place of its own. Raises `TooMuchError` where there are too many."""
        self.effort.take()
        if len(self.symbols) == _MAX_PLACES:
            raise TooMuchError
        place = 1 << len(self.symbols)
        self.symbols.append(symbol)
        self.behind.append(0)
        return Part(may_be_empty, place, place)

    def of(self, choice: Choice, leaf: Callable[[Token], Part]) -> Part:
        """The places of a choice; `leaf` makes those of its leaves."""
        may_be_empty, first, last = False, 0, 0
        for sequence in choice.sequences:
            part = NOTHING
            for item in sequence:
                part = self.joined(part, self._item(item, leaf))
            may_be_empty |= part.may_be_empty
            first, last = first | part.first, last | part.last
        return Part(may_be_empty, first, last)

    def joined(self, before: Part, after: Part) -> Part:
        """One part behind the other."""
        self._let_follow(before.last, after.first)
        return Part(
            before.may_be_empty and after.may_be_empty,
            before.first | (after.first if before.may_be_empty else 0),
            after.last | (before.last if after.may_be_empty else 0),
        )

    def _item(self, item: Item, leaf: Callable[[Token], Part]) -> Part:
        """Any number of times where it is more than one: which ones is not looked at."""
        part = leaf(item.what) if isinstance(item.what, Token) else self.of(item.what, leaf)
        if item.most != 1:
            self._let_follow(part.last, part.first)
        return Part(part.may_be_empty or not item.least, part.first, part.last)

    def _let_follow(self, last: int, first: int) -> None:
        if first:
            for place in bits_of(last):
                self.effort.take()
                self.behind[place] |= first


def bits_of(mask: int) -> Iterator[int]:
    """The numbers of the bits that are set, upwards."""
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest
