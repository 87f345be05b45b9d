"""A parser of calls in a text that comes in pieces, told while it comes.

It is written as one of text that is all there. Where the text ends too early it yields, and goes
on in the next piece: each character is looked at once.
"""

from __future__ import annotations

import re
from abc import ABC
from collections.abc import Generator, Sequence
from itertools import groupby
from typing import TypeVar

from pagoda.server.json_end import end_of
from pagoda.server.reading import CallPiece

Result = TypeVar("Result")
Parsing = Generator[None, None, Result]
"""Yields where it needs more text, and returns what it has read."""

_SPACES = re.compile(r"[ \t\r\n]*")


class NoCallError(Exception):
    """What stands here is no part of a call."""


class CallParser(ABC):
    """Reads a value that may be calls of the tools `names`; what it is written in, `_parsing` says.

    A call is told once it is clear that it is one. From then on its arguments are told as they
    come, even if they break off or are wrong in the end.
    """

    _parsing: Parsing[None]

    def __init__(self, names: frozenset[str], *, num_before: int) -> None:
        """Calls are numbered from `num_before` on."""
        self._names = names
        self._index = num_before
        """The number of the call that is being read, or of the next one."""
        self._is_begun = False
        """Something of that call was told."""
        self._pieces: list[CallPiece] = []
        self._text, self._at = "", 0
        self._held: list[str] = []
        self._held_from = 0
        self.is_over = False
        """The value has ended, or what comes is no part of it."""
        self.is_refused = False
        """What comes, or is held, is no call."""

    @property
    def num_calls(self) -> int:
        """How many were begun, with those before this value."""
        return self._index + self._is_begun

    @property
    def held(self) -> str:
        """What was read since something was told."""
        return "".join(self._held)

    def read(self, text: str, position: int) -> int:
        """Go on in `text` from `position`; returns the position behind what was read."""
        self._text, self._at, self._held_from = text, position, position
        try:
            next(self._parsing)
        except StopIteration:
            self.is_over = True
        except NoCallError:
            self.is_over = self.is_refused = True
        self._held.append(self._text[self._held_from : self._at])
        return self._at

    def take_pieces(self) -> tuple[CallPiece, ...]:
        """What was found since this was asked last, one piece of each call."""
        pieces, self._pieces = self._pieces, []
        return tuple(_as_one([*run]) for _, run in groupby(pieces, lambda piece: piece.index))

    def _known(self, name: str) -> str:
        if name not in self._names:
            raise NoCallError
        return name

    def _tell(self, name: str, arguments: str) -> None:
        """The arguments of the call that is being read go on with this."""
        if not self._is_begun:
            self._pieces.append(CallPiece(self._index, arguments, name))
            self._is_begun = True
        elif arguments:
            self._pieces.append(CallPiece(self._index, arguments))
        self._hold_nothing()

    def _end_call(self) -> None:
        self._index, self._is_begun = self._index + 1, False
        self._hold_nothing()

    def _hold_nothing(self) -> None:
        self._held, self._held_from = [], self._at

    def _next(self) -> Parsing[str]:
        """The next character behind white space, which is not taken."""
        while True:
            self._at = end_of(_SPACES, self._text, self._at)
            if self._at < len(self._text):
                return self._text[self._at]
            yield


def _as_one(pieces: Sequence[CallPiece]) -> CallPiece:
    """Pieces of one call that follow each other."""
    first = pieces[0]
    return CallPiece(first.index, "".join(each.arguments for each in pieces), first.name)
