"""Calls of tools in a JSON value that comes in pieces, told while it comes.

    {"name": "weather", "arguments": {"city": "Rome"}}        or a list of such objects
    └ held: is it a call? ─────────┘ └ told as it comes

`JSONCalls` is written as a parser of text that is all there. Where the text ends too early it
yields, and goes on in the next piece: each character is looked at once.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Generator
from dataclasses import replace
from functools import partial
from typing import TypeVar

from pagoda.server.json_end import JSONEnd, ScalarEnd, end_of
from pagoda.server.reading import CallPiece

Result = TypeVar("Result")
Parsing = Generator[None, None, Result]
"""Yields where it needs more text, and returns what it has read."""

_SPACES = re.compile(r"[ \t\r\n]*")
_ARGUMENTS = ("arguments", "parameters")


class _NoCallError(Exception):
    """What stands here is no part of a call."""


class JSONCalls:
    """Reads a JSON value that may be one call of the tools `names`, or a list of them.

    It is a call once its name is one of the tools, and its arguments have begun: an object, or the
    text of one in a string. From then on the arguments are told as the model writes them, even if
    they break off or are no JSON in the end.
    """

    def __init__(
        self,
        names: frozenset[str],
        *,
        name: str | None = None,
        num_before: int = 0,
        is_forced: bool = False,
    ) -> None:
        """With a `name` the value is the arguments of that tool's call.

        Calls are numbered from `num_before` on. If `is_forced`, the value can be nothing but calls:
        each is told as soon as its name is known.
        """
        self._names = names
        self._is_forced = is_forced
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
        self._parsing = self._calls() if name is None else self._call_of(name)

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
        except _NoCallError:
            self.is_over = self.is_refused = True
        self._held.append(self._text[self._held_from : self._at])
        return self._at

    def take_pieces(self) -> tuple[CallPiece, ...]:
        """What was found since this was asked last."""
        pieces, self._pieces = self._pieces, []
        return tuple(pieces)

    def _calls(self) -> Parsing[None]:
        if (yield from self._take("{[")) == "{":
            yield from self._call()
            return
        separator = ","
        while separator == ",":
            yield from self._take("{")
            yield from self._call()
            separator = yield from self._take(",]")
            self._hold_nothing()

    def _call(self) -> Parsing[None]:
        """What comes behind the opening bracket of a call."""
        name: str | None = None
        early: str | None = None
        """Arguments that came before the name."""
        has_arguments = False
        separator = ","
        while separator == ",":
            key = _string_in((yield from self._whole()))
            yield from self._take(":")
            if key == "name" and name is None:
                name = self._known(_string_in((yield from self._whole())))
                if self._is_forced or early is not None:
                    self._tell(name, early or "")
            elif key not in _ARGUMENTS or has_arguments:
                yield from self._whole()
            elif name is None:
                early, has_arguments = _arguments_in((yield from self._whole())), True
            else:
                has_arguments = True
                yield from self._arguments(name)
            separator = yield from self._take(",}")
        if name is None:
            raise _NoCallError
        if not has_arguments:
            self._tell(name, "{}")
        self._index, self._is_begun = self._index + 1, False
        self._hold_nothing()

    def _call_of(self, name: str) -> Parsing[None]:
        yield from self._arguments(self._known(name))

    def _arguments(self, name: str) -> Parsing[None]:
        if (yield from self._next()) == "{":
            yield from self._value(partial(self._tell, name))
        else:
            self._tell(name, _arguments_in((yield from self._whole())))

    def _known(self, name: str) -> str:
        if name not in self._names:
            raise _NoCallError
        return name

    def _tell(self, name: str, arguments: str) -> None:
        """The arguments of the call that is being read go on with this."""
        if not self._is_begun:
            self._pieces.append(CallPiece(self._index, arguments, name))
            self._is_begun = True
        elif self._pieces and self._pieces[-1].index == self._index:
            last = self._pieces[-1]
            self._pieces[-1] = replace(last, arguments=last.arguments + arguments)
        elif arguments:
            self._pieces.append(CallPiece(self._index, arguments))
        self._hold_nothing()

    def _hold_nothing(self) -> None:
        self._held, self._held_from = [], self._at

    def _whole(self) -> Parsing[str]:
        """The text of the value that comes."""
        parts: list[str] = []
        yield from self._value(parts.append)
        return "".join(parts)

    def _value(self, tell: Callable[[str], None]) -> Parsing[None]:
        """The value that comes; `tell` is given its text in pieces."""
        first = yield from self._next()
        end = JSONEnd() if first in '{["' else ScalarEnd()
        while True:
            start, self._at = self._at, end.look(self._text, self._at)
            tell(self._text[start : self._at])
            if end.is_broken:
                raise _NoCallError
            if end.is_found:
                return
            yield

    def _take(self, wanted: str) -> Parsing[str]:
        """The next character behind white space, which must be one of those `wanted`."""
        character = yield from self._next()
        if character not in wanted:
            raise _NoCallError
        self._at += 1
        return character

    def _next(self) -> Parsing[str]:
        """The next character behind white space, which is not taken."""
        while True:
            self._at = end_of(_SPACES, self._text, self._at)
            if self._at < len(self._text):
                return self._text[self._at]
            yield


def _string_in(text: str) -> str:
    value = _value_in(text)
    if not isinstance(value, str):
        raise _NoCallError
    return value


def _arguments_in(text: str) -> str:
    """Arguments that came whole. Some models write the text of the JSON, some `null` for none."""
    if text.startswith("{"):
        return text
    if text == "null":
        return "{}"
    written = _string_in(text)
    try:
        written.encode()
    except UnicodeEncodeError:  # half of a surrogate pair, which no answer can carry
        raise _NoCallError from None
    return written


def _value_in(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise _NoCallError from None
