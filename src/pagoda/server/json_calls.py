"""Calls of tools in a JSON value that comes in pieces, told while it comes.

{"name": "weather", "arguments": {"city": "Rome"}}        or a list of such objects
└ held: is it a call? ─────────┘ └ told as it comes
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial

from pagoda.server.call_parser import CallParser, NoCallError, Parsing
from pagoda.server.json_end import JSONEnd, ScalarEnd

_ARGUMENTS = ("arguments", "parameters")


class JSONCalls(CallParser):
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
        super().__init__(names, num_before=num_before)
        self._is_forced = is_forced
        self._parsing = self._calls() if name is None else self._call_of(name)

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
            raise NoCallError
        if not has_arguments:
            self._tell(name, "{}")
        self._end_call()

    def _call_of(self, name: str) -> Parsing[None]:
        yield from self._arguments(self._known(name))

    def _arguments(self, name: str) -> Parsing[None]:
        if (yield from self._next()) == "{":
            yield from self._value(partial(self._tell, name))
        else:
            self._tell(name, _arguments_in((yield from self._whole())))

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
                raise NoCallError
            if end.is_found:
                return
            yield

    def _take(self, wanted: str) -> Parsing[str]:
        """The next character behind white space, which must be one of those `wanted`."""
        character = yield from self._next()
        if character not in wanted:
            raise NoCallError
        self._at += 1
        return character


def _string_in(text: str) -> str:
    value = _value_in(text)
    if not isinstance(value, str):
        raise NoCallError
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
        raise NoCallError from None
    return written


def _value_in(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise NoCallError from None
