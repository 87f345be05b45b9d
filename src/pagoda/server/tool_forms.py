"""The forms in which models call tools, as their chat templates taught them.

    Hermes, Qwen   text <tool_call>{"name": …, "arguments": {…}}</tool_call> text
    Mistral        text [TOOL_CALLS][{"name": …, "arguments": {…}}, …]
                   text [TOOL_CALLS]name[ARGS]{…}[TOOL_CALLS]…     tokenizers from version 11 on
    Llama 3        {"name": …, "parameters": {…}}; {…}     with <|python_tag|> before it, or without

A reader goes from step to step, and back to the text where a value turns out to be no call. Each
character is looked at twice at most: of two values that begin at different tags the one takes for
a string what the other takes for something else, in which no tag can stand.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import replace

from pagoda.models.tool_prompt import ToolFormat
from pagoda.server.json_end import JSONEnd
from pagoda.server.tool_calls import AnswerReader, Reading, ToolCall, calls_in

_MOST_HELD = 256
"""Characters in front of a value, or behind it, that are waited for: more than any form has."""
_SPACE = r"[ \t\r\n]"
_SPACES = rf"{_SPACE}{{0,64}}"


class _SteppingReader(AnswerReader):
    """Keeps what the steps of all forms need.

        _text    …│ head │ value so far │ not looked at      in the value
                  └ _head_at            └ _at

    A step returns whether there is another one to take before more text comes.
    """

    def __init__(self, names: frozenset[str]) -> None:
        self._names = names
        self._step: Callable[[bool], bool]
        self._text, self._at = "", 0
        self._earlier: list[str] = []
        """What came of the head and the value in earlier pieces."""
        self._head_at, self._head_length = 0, 0
        self._end: JSONEnd | None = None
        """Finds the end of the value that is being read; None outside of one."""
        self._content: list[str] = []
        self._calls: list[ToolCall] = []
        self._num_told = 0
        """Calls that were found in earlier pieces."""

    def feed(self, text: str, *, finished: bool) -> Reading:
        self._text, self._at = self._text[self._at :] + text, 0
        while self._step(finished):
            pass
        if self._end is not None:
            self._earlier.append(self._text[self._head_at :])
            self._head_at = 0
        reading = Reading.of("".join(self._content), self._calls, self._num_told)
        self._num_told += len(self._calls)
        self._content, self._calls = [], []
        return reading

    def _enter_value(self, position: int) -> bool:
        """The value begins at `position`, and its head where the reader is."""
        self._head_at, self._head_length = self._at, position - self._at
        self._at, self._end = position, JSONEnd()
        self._step = self._in_value
        return True

    def _in_value(self, finished: bool) -> bool:
        assert self._end is not None
        self._at = self._end.look(self._text, self._at)
        if not self._end.is_found and not self._end.is_broken and not finished:
            return False
        calls = None
        if self._end.is_found:
            both = "".join(self._earlier) + self._text[self._head_at : self._at]
            calls = self._calls_in(both[: self._head_length], both[self._head_length :])
        if calls is not None:
            self._calls += calls
            self._step = self._behind_call
        else:
            self._text, self._at = "".join(self._earlier) + self._text, self._head_at
            self._refuse()
        self._earlier, self._end = [], None
        return True

    def _may_become(self, head: re.Pattern[str], finished: bool) -> bool:
        """What is there may be the beginning of such a head: more is waited for."""
        is_short = len(self._text) - self._at <= _MOST_HELD
        return is_short and not finished and head.fullmatch(self._text, self._at) is not None

    def _calls_in(self, head: str, value: str) -> tuple[ToolCall, ...] | None:
        """None where the value is no call."""
        return calls_in(value, self._names)

    @abstractmethod
    def _behind_call(self, finished: bool) -> bool:
        """The step behind a call."""

    @abstractmethod
    def _refuse(self) -> None:
        """What begins where the reader is, is no call."""


class TaggedCalls(_SteppingReader):
    """Calls behind an opening tag, anywhere in the text."""

    _HEAD = re.compile(rf"{_SPACES}(?=[\[{{])")
    _HEAD_SO_FAR = re.compile(_SPACES)

    def __init__(self, names: frozenset[str], opening: str, closing: str = "") -> None:
        super().__init__(names)
        self._opening = opening
        self._closing = closing
        self._behind = re.compile(f"{_SPACES}{re.escape(closing)}")
        self._behind_so_far = re.compile(f"{_SPACES}(?:{_beginning_of(closing)})")
        self._spaces: list[str] = []
        """White space that belongs to the text if more of it follows, or if there is no call."""
        self._has_calls = False
        self._step = self._in_text

    def feed(self, text: str, *, finished: bool) -> Reading:
        reading = super().feed(text, finished=finished)
        if finished and not self._has_calls:
            return replace(reading, content=reading.content + "".join(self._spaces))
        return reading

    def _in_text(self, finished: bool) -> bool:
        start = self._text.find(self._opening, self._at)
        end = start if start >= 0 else len(self._text)
        if start < 0 and not finished:
            end -= _num_held(self._text[self._at :], self._opening)
        self._say(self._text[self._at : end])
        self._at = end
        if start < 0:
            return False
        self._at += len(self._opening)
        self._step = self._at_head
        return True

    def _at_head(self, finished: bool) -> bool:
        match = self._HEAD.match(self._text, self._at)
        if match is not None:
            return self._enter_value(match.end())
        if self._may_become(self._HEAD_SO_FAR, finished):
            return False
        self._refuse()
        return True

    def _behind_call(self, finished: bool) -> bool:
        self._has_calls = True
        if self._closing:
            match = self._behind.match(self._text, self._at)
            if match is not None:
                self._at = match.end()
            elif self._may_become(self._behind_so_far, finished):
                return False
        self._step = self._in_text
        return True

    def _refuse(self) -> None:
        self._say(self._opening)
        self._step = self._in_text

    def _say(self, text: str) -> None:
        said = text.rstrip()
        if said:
            self._content += [*self._spaces, said]
            self._spaces = []
        self._spaces.append(text[len(said) :])


class MistralCalls(TaggedCalls):
    """Mistral's two forms: a list of calls, or a call's name in front of its arguments."""

    _NAMED = (
        rf"{_SPACES}([\w-]{{1,64}}){_SPACE}?(?:\[CALL_ID\]\w{{1,32}})?(?:\[ARGS\])?{_SPACE}?(?=\{{)"
    )
    _HEAD = re.compile(rf"{_NAMED}|{TaggedCalls._HEAD.pattern}")
    _HEAD_SO_FAR = re.compile(rf"{_SPACES}[\w\[\] -]*")

    def __init__(self, names: frozenset[str]) -> None:
        super().__init__(names, "[TOOL_CALLS]")

    def _calls_in(self, head: str, value: str) -> tuple[ToolCall, ...] | None:
        match = self._HEAD.match(head + value[0])
        return calls_in(value, self._names, None if match is None else match[1])


class BareCalls(_SteppingReader):
    """Calls that are the whole answer: JSON objects from its beginning on, with `;` between."""

    _TAG = "<|python_tag|>"
    _HEAD = re.compile(rf"\s{{0,64}}(?:{re.escape(_TAG)})?{_SPACES}(?=\{{)")
    _BETWEEN = re.compile(r"[ \t\r\n;]*")

    def __init__(self, names: frozenset[str]) -> None:
        super().__init__(names)
        self._head_so_far = re.compile(rf"\s{{0,64}}(?:{_beginning_of(self._TAG)}){_SPACES}")
        self._step = self._at_beginning

    def _at_beginning(self, finished: bool) -> bool:
        match = self._HEAD.match(self._text, self._at)
        if match is not None:
            return self._enter_value(match.end())
        if self._may_become(self._head_so_far, finished):
            return False
        self._refuse()
        return True

    def _behind_call(self, finished: bool) -> bool:
        match = self._BETWEEN.match(self._text, self._at)
        if match is not None:
            self._at = match.end()
        if self._at == len(self._text):
            return False
        if self._text[self._at] == "{":
            return self._enter_value(self._at)
        self._refuse()
        return True

    def _refuse(self) -> None:
        self._step = self._in_text

    def _in_text(self, finished: bool) -> bool:
        self._content.append(self._text[self._at :])
        self._at = len(self._text)
        return False


_READERS: dict[ToolFormat, Callable[[frozenset[str]], AnswerReader]] = {
    "hermes": lambda names: TaggedCalls(names, "<tool_call>", "</tool_call>"),
    "mistral": MistralCalls,
    "llama": BareCalls,
}


def begin_reading(form: ToolFormat, names: frozenset[str]) -> AnswerReader:
    """A reader of one answer of that form, which may call the tools `names`."""
    return _READERS[form](names)


def _num_held(text: str, opening: str) -> int:
    """Characters at the end of `text` that may be the beginning of `opening`."""
    sizes = range(min(len(opening) - 1, len(text)), 0, -1)
    return next((size for size in sizes if text.endswith(opening[:size])), 0)


def _beginning_of(text: str) -> str:
    """A pattern for the first characters of `text`, as many as there are."""
    return "|".join(re.escape(text[:size]) for size in range(len(text), -1, -1))
