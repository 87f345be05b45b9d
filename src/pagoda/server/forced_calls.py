"""Readers of answers that a grammar makes calls of tools, as `tool_choice` can ask for."""

from __future__ import annotations

from pagoda.server.json_calls import JSONCalls
from pagoda.server.reading import CallPiece, Reading, ReadingUnderWay
from pagoda.server.tool_calls import AnswerReader


class ForcedCalls(AnswerReader):
    """The answer is a list of calls, as with "required".

    Of a call that is cut, what there is of it is told, from its name on.
    """

    def __init__(self, names: frozenset[str]) -> None:
        self._value = JSONCalls(names, is_forced=True)
        self._reading = ReadingUnderWay()
        self._num_read = 0

    def feed(self, text: str, *, finished: bool) -> Reading:
        self._num_read += len(text)
        said = text
        if not self._value.is_over:
            position = self._value.read(text, 0)
            self._reading.call(self._value.take_pieces())
            said = self._value.held + text[position:]
        if self._value.is_refused:
            self._reading.say(said, self._num_read - len(said))
        return self._reading.take()


class ForcedArguments(AnswerReader):
    """The answer is the arguments of one tool, as where `tool_choice` names it."""

    def __init__(self, name: str) -> None:
        self._name: str | None = name
        """None once it was told."""

    def feed(self, text: str, *, finished: bool) -> Reading:
        if not text and not (finished and self._name is not None):
            return Reading()
        piece = CallPiece(0, text, self._name)
        self._name = None
        return Reading((piece,))
