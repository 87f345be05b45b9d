r"""Readers of answers that think first: what is thought apart from what is said.

    <think>\nHm.\n</think>\n\nIt is <tool_call>…      the answer, in any pieces
             Hm.                It is <tool_call>…      a thought, and what another reader reads

White space around a thought belongs to its marks. A thought that does not end is all there is. An
answer that does not begin with a mark has none: what comes later is text.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import replace

from pagoda.server.held_text import num_held
from pagoda.server.reading import CallPiece, Piece, Reading, ThoughtPiece
from pagoda.server.thought_forms import IS_THOUGHT, ThoughtForm
from pagoda.server.tool_calls import AnswerReader

_MOST_SPACES = 256
"""Characters of white space that may stand before the mark that an answer begins with."""
_MOST_HEAD = 256
"""Characters of a message's head."""


class ThoughtReader(AnswerReader):
    """What the readers of both kinds of forms have in common.

    A step returns whether there is another one to take before more text comes.
    """

    def __init__(self, form: ThoughtForm, answer: AnswerReader, *, is_open: bool) -> None:
        """`answer` reads what is no thought. The text goes on within a thought if it `is_open`."""
        self._form = form
        self._answer = _Answer(answer)
        self._closing = re.compile("|".join(map(re.escape, form.closing)))
        self._text, self._place = "", 0
        """What is there to be read, and where it begins in the answer."""
        self._has_thought = False
        """Something of the thought has been told."""
        self._spaces: list[str] = []
        """White space behind that, which belongs to it if more of it follows."""
        self._pieces: list[Piece] = []
        self._otherwise = self._in_thought if is_open else self._in_answer
        """The step where the answer does not begin with a mark."""
        self._step: Callable[[bool], bool] = self._at_beginning

    def feed(self, text: str, *, finished: bool) -> Reading:
        self._text += text
        while self._step(finished):
            pass
        if finished:
            self._pieces += self._answer.end()
        pieces, self._pieces = self._pieces, []
        return Reading(tuple(pieces))

    @abstractmethod
    def _behind_opening(self, finished: bool) -> bool:
        """The step behind the mark that the answer begins with."""

    @abstractmethod
    def _behind_thought(self, finished: bool) -> bool:
        """The step behind the mark that ends a thought."""

    def _at_beginning(self, finished: bool) -> bool:
        begun = self._text.lstrip()
        if len(self._text) - len(begun) <= _MOST_SPACES:
            mark = next((mark for mark in self._form.opening if begun.startswith(mark)), None)
            if mark is not None:
                self._skip(len(self._text) - len(begun) + len(mark))
                self._step = self._behind_opening
                return True
            if not finished and any(mark.startswith(begun) for mark in self._form.opening):
                return False
        self._step = self._otherwise
        return True

    def _in_thought(self, finished: bool) -> bool:
        mark = self._closing.search(self._text)
        if mark is None:
            held = 0 if finished else num_held(self._text, *self._form.closing)
            self._think(len(self._text) - held, is_all=finished)
            self.thought_end = self._place + len(self._text)
            return False
        size = mark.end() - mark.start()
        self._think(mark.start(), is_all=True)
        self._skip(size)
        self.thought_end = self._place
        self._has_thought = False
        self._step = self._behind_thought
        return True

    def _think(self, num: int, *, is_all: bool) -> None:
        """The next characters are thought; white space behind them waits if that is not all."""
        text = self._text[:num] if self._has_thought else self._text[:num].lstrip()
        self._skip(num - len(text))
        said = text.rstrip()
        if said:
            spaces = "".join(self._spaces)
            self._pieces.append(ThoughtPiece(spaces + said, self._place - len(spaces)))
            self._spaces = []
            self._has_thought = True
        self._spaces.append(text[len(said) :])
        if is_all:
            self._spaces = []
        self._skip(len(text))

    def _in_answer(self, finished: bool) -> bool:
        """All that comes is answer."""
        self._say(len(self._text))
        return False

    def _say(self, num: int) -> None:
        """The next characters are answer."""
        self._pieces += self._answer.read(self._text[:num], self._place)
        self._skip(num)

    def _skip(self, num: int) -> None:
        self._text, self._place = self._text[num:], self._place + num


class TaggedThoughts(ThoughtReader):
    """A thought between two marks at the beginning; the rest is answer."""

    def _behind_opening(self, finished: bool) -> bool:
        self._step = self._in_thought
        return True

    def _behind_thought(self, finished: bool) -> bool:
        self._skip(len(self._text) - len(self._text.lstrip()))
        if not self._text:
            return False
        self._step = self._in_answer
        return True


class Channels(ThoughtReader):
    """Messages, each with a head that says whether it is thought."""

    def _behind_opening(self, finished: bool) -> bool:
        return self._behind_thought(finished)

    def _behind_thought(self, finished: bool) -> bool:
        """In the head of the next message; what has no end of a head is said."""
        self._step = self._behind_thought
        most = _MOST_HEAD + len(self._form.body)
        head, found, _ = self._text[:most].partition(self._form.body)
        if not found and len(self._text) < most:
            return False
        if found:
            self._skip(len(head) + len(found))
        is_thought = found and IS_THOUGHT in head
        self._step = self._in_thought if is_thought else self._in_message
        return True

    def _in_message(self, finished: bool) -> bool:
        mark = self._closing.search(self._text)
        if mark is None:
            held = 0 if finished else num_held(self._text, *self._form.closing)
            self._say(len(self._text) - held)
            return False
        size = mark.end() - mark.start()
        self._say(mark.start())
        self._skip(size)
        self._step = self._behind_thought
        return True


class _Answer:
    """The parts of an answer that are no thought, as one text for another reader."""

    def __init__(self, reader: AnswerReader) -> None:
        self._reader = reader
        self._num_read = 0
        self._has_begun = False
        self._own, self._places = [0], [0]
        """From each place in that text on, where it stands in the answer."""

    def read(self, text: str, place: int) -> list[Piece]:
        """`text`, which comes next, stands at `place` of the answer."""
        self._has_begun = True
        if place != self._place_of(self._num_read):
            self._own.append(self._num_read)
            self._places.append(place)
        self._num_read += len(text)
        return self._feed(text)

    def end(self) -> list[Piece]:
        """Nothing more comes. An answer that has not begun says nothing."""
        return self._feed("", finished=True) if self._has_begun else []

    def _feed(self, text: str, *, finished: bool = False) -> list[Piece]:
        return [self._placed(each) for each in self._reader.feed(text, finished=finished).pieces]

    def _placed(self, piece: Piece) -> Piece:
        if isinstance(piece, CallPiece):
            return piece
        return replace(piece, start=self._place_of(piece.start))

    def _place_of(self, own: int) -> int:
        part = bisect_right(self._own, own) - 1
        return self._places[part] + own - self._own[part]
