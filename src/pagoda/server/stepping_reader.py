"""A reader of answers that goes from step to step, and looks at each character once."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable

from pagoda.server.call_parser import CallParser
from pagoda.server.json_calls import JSONCalls
from pagoda.server.reading import Reading, ReadingUnderWay
from pagoda.server.tool_calls import AnswerReader

_MOST_HELD = 256
"""Characters in front of a value, or behind it, that are waited for: more than any form has."""


class SteppingReader(AnswerReader):
    """Keeps what the steps of all forms need.

    A step returns whether there is another one to take before more text comes.
    """

    def __init__(self, names: frozenset[str]) -> None:
        self._names = names
        self._step: Callable[[bool], bool]
        self._text, self._at, self._num_before = "", 0, 0
        """What is there to be read, how far it was, and the characters of the answer before it."""
        self._head = ""
        """What stands in front of the value that is being read."""
        self._value: CallParser
        self._reading = ReadingUnderWay()
        self._num_calls = 0
        """Calls before the value that is being read."""

    def feed(self, text: str, *, finished: bool) -> Reading:
        self._num_before += self._at
        self._text, self._at = self._text[self._at :] + text, 0
        while self._step(finished):
            pass
        if finished:
            self._finish()
        return self._reading.take()

    @property
    def _place(self) -> int:
        """Where the reader is, in characters of the answer."""
        return self._num_before + self._at

    def _enter_value(self, position: int, name: str | None = None) -> bool:
        """The value begins at `position`, and its head where the reader is."""
        self._head, self._at = self._text[self._at : position], position
        self._value = self._begin_value(name)
        self._step = self._in_value
        return True

    def _begin_value(self, name: str | None) -> CallParser:
        """What reads the value behind a head, which may have the tool's name in it."""
        return JSONCalls(self._names, name=name, num_before=self._num_calls)

    def _in_value(self, finished: bool) -> bool:
        value = self._value
        self._at = value.read(self._text, self._at)
        self._reading.call(value.take_pieces())
        if not value.is_over:
            if not finished:
                return False
            self._at = len(self._text)  # it breaks off, maybe within a mark
        head = "" if value.num_calls > self._num_calls else self._head
        is_call = value.num_calls > self._num_calls and not value.is_refused
        self._num_calls = value.num_calls
        if is_call:
            self._step = self._behind_call
        else:
            self._refuse(head + value.held)
        return True

    def _may_become(self, head: re.Pattern[str], finished: bool) -> bool:
        """What is there may be the beginning of such a head: more is waited for."""
        is_short = len(self._text) - self._at <= _MOST_HELD
        return is_short and not finished and head.fullmatch(self._text, self._at) is not None

    @abstractmethod
    def _behind_call(self, finished: bool) -> bool:
        """The step behind a call."""

    @abstractmethod
    def _refuse(self, text: str) -> None:
        """`text`, which stands in front of where the reader is, is no call."""

    def _finish(self) -> None:
        """There is nothing more to read."""
