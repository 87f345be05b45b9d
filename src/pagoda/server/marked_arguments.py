"""The arguments of a call whose names and values stand between marks, as JSON told while they come.

    <arg_key>city</arg_key>                    <parameter=city>
    <arg_value>Rome</arg_value>                Rome
                                               </parameter>

The values are plain text; what they mean, the schema of the tool's arguments says. Strings are told
as they come, anything else once it has ended.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from pagoda.server.argument_kinds import STRING, as_json, kinds_of
from pagoda.server.call_parser import CallParser, NoCallError, Parsing
from pagoda.server.held_text import num_held


@dataclass(frozen=True, slots=True)
class ArgumentMarks:
    """What stands around the parts of arguments."""

    before_name: str
    behind_name: str
    before_value: str
    """Empty where a value follows its name's mark at once."""
    behind_value: str
    end: str
    """Behind all arguments."""
    own_lines: bool
    """A value has lines of its own: the breaks next to its marks are no part of it."""


class MarkedArguments(CallParser):
    """Reads the arguments of one call. It is told at once, since its name is known."""

    def __init__(
        self,
        marks: ArgumentMarks,
        schemas: Mapping[str, Mapping[str, Any]],
        name: str,
        *,
        num_before: int,
    ) -> None:
        """`schemas` are those of the arguments of the tools, by name. `name` may be none of them:
        then what comes is no call."""
        super().__init__(frozenset(schemas), num_before=num_before)
        self._marks = marks
        self._schemas = schemas
        self._tell_more = partial(self._tell, name)
        self._parsing = self._call(name)

    def _call(self, name: str) -> Parsing[None]:
        schema = self._schemas[self._known(name)]
        marks = self._marks
        self._tell_more("{")
        separator = ""
        while (yield from self._one_of(marks.before_name, marks.end)) == marks.before_name:
            parts: list[str] = []
            yield from self._until(marks.behind_name, parts.append)
            if marks.before_value:
                yield from self._one_of(marks.before_value)
            argument = "".join(parts).strip()
            begun = f"{separator}{json.dumps(argument, ensure_ascii=False)}: "
            yield from self._value(begun, kinds_of(argument, schema))
            separator = ", "
        self._tell_more("}")
        self._end_call()

    def _value(self, begun: str, kinds: frozenset[str]) -> Parsing[None]:
        """The value that comes, told behind what its argument has `begun` with."""
        if self._marks.own_lines:
            yield from self._skip_line_break()
        if kinds == STRING:
            self._tell_more(f'{begun}"')
            yield from self._until(self._marks.behind_value, self._tell_escaped, is_value=True)
            self._tell_more('"')
            return
        parts: list[str] = []
        yield from self._until(self._marks.behind_value, parts.append, is_value=True)
        self._tell_more(begun + as_json("".join(parts), kinds))

    def _tell_escaped(self, text: str) -> None:
        self._tell_more(json.dumps(text, ensure_ascii=False)[1:-1])

    def _one_of(self, *marks: str) -> Parsing[str]:
        """Takes the mark that comes behind white space."""
        yield from self._next()
        while True:
            for mark in marks:
                if self._text.startswith(mark, self._at):
                    self._at += len(mark)
                    return mark
            come = self._text[self._at : self._at + max(map(len, marks))]
            if not any(mark.startswith(come) for mark in marks):
                raise NoCallError
            yield

    def _until(
        self, mark: str, tell: Callable[[str], None], *, is_value: bool = False
    ) -> Parsing[None]:
        """Takes the text up to `mark`, and that; `tell` is given the text in pieces."""
        has_break = is_value and self._marks.own_lines
        while (end := self._text.find(mark, self._at)) < 0:
            rest = self._text[self._at :]
            held = num_held(rest, mark, f"\n{mark}") if has_break else num_held(rest, mark)
            self._take_until(len(self._text) - held, tell)
            yield
        broken = has_break and end > self._at and self._text[end - 1] == "\n"
        self._take_until(end - broken, tell)
        self._at = end + len(mark)

    def _take_until(self, end: int, tell: Callable[[str], None]) -> None:
        start, self._at = self._at, end
        tell(self._text[start:end])

    def _skip_line_break(self) -> Parsing[None]:
        while self._at == len(self._text):
            yield
        self._at += self._text[self._at] == "\n"
