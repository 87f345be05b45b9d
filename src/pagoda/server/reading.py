"""What was read of an answer: texts and calls of tools, in the order in which they were said."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class TextPiece:
    """What a piece of an answer brings of text outside of calls."""

    text: str
    start: int
    """Where it begins in the answer, in characters."""

    @property
    def end(self) -> int:
        return self.start + len(self.text)


@dataclass(frozen=True, slots=True)
class ThoughtPiece:
    """What a piece of an answer brings of what the model thinks before it answers."""

    text: str
    start: int
    """Where it begins in the answer, in characters."""


@dataclass(frozen=True, slots=True)
class CallPiece:
    """What a piece of an answer brings of one call."""

    index: int
    """Which of the answer's calls it belongs to, from 0."""
    arguments: str
    """What the text of the arguments goes on with."""
    name: str | None = None
    """The tool's name, with a call's first piece alone."""


Piece = TextPiece | ThoughtPiece | CallPiece


@dataclass(frozen=True, slots=True)
class Reading:
    """What a piece of an answer brings, in its order. A call ends where something else begins."""

    pieces: tuple[Piece, ...] = ()

    def without_thoughts(self) -> Reading:
        """What is said alone."""
        return Reading(tuple(each for each in self.pieces if not isinstance(each, ThoughtPiece)))

    @property
    def thought(self) -> str:
        """All that is thought."""
        return "".join(piece.text for piece in self.pieces if isinstance(piece, ThoughtPiece))

    @property
    def content(self) -> str:
        """All text outside of the calls."""
        return "".join(piece.text for piece in self.pieces if isinstance(piece, TextPiece))

    @property
    def calls(self) -> tuple[CallPiece, ...]:
        return tuple(piece for piece in self.pieces if isinstance(piece, CallPiece))


class ReadingUnderWay:
    """Takes in what is read. Texts that follow one another directly become one piece."""

    def __init__(self) -> None:
        self._pieces: list[Piece] = []
        self._texts: list[str] = []
        """The parts of the last piece, if that is of text."""
        self._start = self._end = 0
        """Where these begin and end in the answer."""

    def say(self, text: str, start: int) -> None:
        """Text that begins at `start`, in characters of the answer."""
        if not text:
            return
        if self._texts and start != self._end:
            self._end_text()
        if not self._texts:
            self._start = start
        self._texts.append(text)
        self._end = start + len(text)

    def call(self, pieces: Iterable[CallPiece]) -> None:
        for piece in pieces:
            self._end_text()
            self._pieces.append(piece)

    def take(self) -> Reading:
        """What came in since this was asked last."""
        self._end_text()
        pieces, self._pieces = self._pieces, []
        return Reading(tuple(pieces))

    def _end_text(self) -> None:
        if self._texts:
            self._pieces.append(TextPiece("".join(self._texts), self._start))
            self._texts = []


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call: the tool's name, and its arguments as JSON text."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Thought:
    """What was thought at a stretch."""

    text: str


Said = str | Thought | ToolCall


def joined(pieces: Iterable[Piece]) -> list[Said]:
    """What all of these pieces say, in its order: texts, thoughts and calls, each of them whole."""
    said: list[Said] = []
    for piece in pieces:
        last = said[-1] if said else None
        if isinstance(piece, TextPiece):
            if isinstance(last, str):
                said[-1] = last + piece.text
            else:
                said.append(piece.text)
        elif isinstance(piece, ThoughtPiece):
            if isinstance(last, Thought):
                said[-1] = Thought(last.text + piece.text)
            else:
                said.append(Thought(piece.text))
        elif piece.name is not None:
            said.append(ToolCall(piece.name, piece.arguments))
        else:
            assert isinstance(last, ToolCall), "a call goes on that has not begun, or has ended"
            said[-1] = replace(last, arguments=last.arguments + piece.arguments)
    return said


def calls_in(pieces: Iterable[Piece]) -> list[ToolCall]:
    """The calls that these pieces make, in their order."""
    return [each for each in joined(pieces) if isinstance(each, ToolCall)]
