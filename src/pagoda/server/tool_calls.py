"""What finds the calls of tools in an answer while it comes.

The forms in which models call tools of their own accord are in `tool_forms`, calls that an answer
must consist of in `forced_calls`.
"""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from pagoda.request import ThoughtMarks
from pagoda.server.reading import CallPiece, Reading, TextPiece


def new_call_id() -> str:
    """A call's id: nine letters and digits, the only form that Mistral's templates take."""
    return uuid.uuid4().hex[:9]


class AnswerReader(ABC):
    """Reads one answer, piece by piece, in a time that grows with its length alone.

    However the answer is cut into pieces, the same is said in it.
    """

    thought_end = 0
    """Where the last thought ends in the answer so far, its marks with it, in characters."""

    @abstractmethod
    def feed(self, text: str, *, finished: bool) -> Reading:
        """What `text`, the next piece, brings; nothing comes behind it if `finished`.

        What might turn out to be a call is told once that is clear.
        """


class PlainText(AnswerReader):
    """An answer without calls: all of it is text."""

    def __init__(self) -> None:
        self._num_read = 0

    def feed(self, text: str, *, finished: bool) -> Reading:
        start = self._num_read
        self._num_read += len(text)
        return Reading((TextPiece(text, start),) if text else ())


@dataclass(frozen=True, slots=True)
class ToolReader:
    """How the answers to one request are read."""

    begin: Callable[[], AnswerReader] = PlainText
    """A reader for one answer."""
    finish_reason: Literal["tool_calls", "stop"] = "tool_calls"
    """What an answer with calls that ended by itself is given as its reason."""
    knows_thoughts: bool = False
    """What is thought is told apart from what is said."""
    mark_ids: frozenset[int] = frozenset()
    """Tokens that it must see, though they may be special."""
    thought: ThoughtMarks | None = None
    """A thought that may go before an answer which must have a form."""


NO_TOOLS = ToolReader()


class FirstCall(AnswerReader):
    """Takes the first call alone, where a client wants no more than one."""

    def __init__(self, reader: AnswerReader) -> None:
        self._reader = reader

    def feed(self, text: str, *, finished: bool) -> Reading:
        pieces = self._reader.feed(text, finished=finished).pieces
        return Reading(tuple(p for p in pieces if not isinstance(p, CallPiece) or p.index == 0))
