"""Calls of tools, and the readers that find them in what the model says while it says it.

What looks like a call but is none, because it is no JSON or names no tool, stays text. The forms in
which models call tools of their own accord are in `tool_forms`.
"""

from __future__ import annotations

import json
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call: the tool's name, and its arguments as JSON text."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class CallPiece:
    """What a piece of an answer brings of one call."""

    index: int
    """Which of the answer's calls it belongs to, from 0."""
    arguments: str
    """What the text of the arguments goes on with."""
    name: str | None = None
    """The tool's name, with a call's first piece alone."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What a piece of an answer brings."""

    content: str
    """Text outside the calls."""
    calls: tuple[CallPiece, ...] = ()

    @classmethod
    def of(cls, content: str, calls: Sequence[ToolCall], first: int = 0) -> Reading:
        """With whole calls, numbered from `first` on."""
        numbered = enumerate(calls, first)
        return cls(content, tuple(CallPiece(n, call.arguments, call.name) for n, call in numbered))


def gathered(pieces: Iterable[CallPiece]) -> list[ToolCall]:
    """The calls that all of these pieces make, in their order."""
    calls: dict[int, ToolCall] = {}
    for piece in pieces:
        if piece.name is not None:
            calls[piece.index] = ToolCall(piece.name, piece.arguments)
        else:
            call = calls[piece.index]
            calls[piece.index] = replace(call, arguments=call.arguments + piece.arguments)
    return list(calls.values())


def new_call_id() -> str:
    """A call's id: nine letters and digits, the only form that Mistral's templates take."""
    return uuid.uuid4().hex[:9]


class AnswerReader(ABC):
    """Reads one answer, piece by piece, in a time that grows with its length alone."""

    @abstractmethod
    def feed(self, text: str, *, finished: bool) -> Reading:
        """What `text`, the next piece, brings; nothing comes behind it if `finished`.

        What might turn out to be a call is told once that is clear.
        """


@dataclass(frozen=True, slots=True)
class ToolReader:
    """How the answers to one request are read."""

    begin: Callable[[], AnswerReader]
    """A reader for one answer."""
    finish_reason: Literal["tool_calls", "stop"] = "tool_calls"
    """What an answer with calls that ended by itself is given as its reason."""


class WholeCalls(AnswerReader):
    """An answer that a schema makes a list of calls, as `tool_choice` "required" does."""

    def __init__(self, names: frozenset[str]) -> None:
        self._names = names
        self._pieces: list[str] = []

    def feed(self, text: str, *, finished: bool) -> Reading:
        self._pieces.append(text)
        if not finished:
            return Reading("")
        whole = "".join(self._pieces)
        calls = calls_in(whole, self._names)
        return Reading(whole) if calls is None else Reading.of("", calls)


class WholeArguments(AnswerReader):
    """An answer that a schema makes the arguments of one tool, as a named `tool_choice` does."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._pieces: list[str] = []

    def feed(self, text: str, *, finished: bool) -> Reading:
        self._pieces.append(text)
        if not finished:
            return Reading("")
        return Reading.of("", [ToolCall(self._name, "".join(self._pieces))])


class FirstCall(AnswerReader):
    """Takes the first call alone, where a client wants no more than one."""

    def __init__(self, reader: AnswerReader) -> None:
        self._reader = reader

    def feed(self, text: str, *, finished: bool) -> Reading:
        reading = self._reader.feed(text, finished=finished)
        return replace(reading, calls=tuple(piece for piece in reading.calls if piece.index == 0))


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_no_number)


def calls_in(
    text: str, names: frozenset[str], name: str | None = None
) -> tuple[ToolCall, ...] | None:
    """The calls of the tools `names` that a JSON text is; None where it is none.

    With a `name`, the text is the arguments of a call of that tool.
    """
    try:
        value = _DECODER.decode(text)
        if name is not None:
            value = {"name": name, "arguments": value}
        calls = [_call(each, names) for each in (value if isinstance(value, list) else [value])]
    except (ValueError, RecursionError):  # no JSON, or deeper than can be read or written
        return None
    found = tuple(call for call in calls if call is not None)
    return found if found and len(found) == len(calls) else None


def _call(value: Any, names: frozenset[str]) -> ToolCall | None:
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return None
    if value["name"] not in names:
        return None
    arguments = value.get("arguments", value.get("parameters", {}))
    if not isinstance(arguments, str):  # some models write the text of the JSON
        arguments = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
    try:
        arguments.encode()
    except UnicodeEncodeError:  # half of a surrogate pair, which no answer can carry
        return None
    return ToolCall(value["name"], arguments)
