"""Calls of tools, and what finds them in an answer while it comes.

The forms in which models call tools of their own accord are in `tool_forms`, calls that an answer
must consist of in `forced_calls`.
"""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Literal


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


class FirstCall(AnswerReader):
    """Takes the first call alone, where a client wants no more than one."""

    def __init__(self, reader: AnswerReader) -> None:
        self._reader = reader

    def feed(self, text: str, *, finished: bool) -> Reading:
        reading = self._reader.feed(text, finished=finished)
        return replace(reading, calls=tuple(piece for piece in reading.calls if piece.index == 0))
