"""The forms in which models call tools, as their chat templates taught them.

    Hermes, Qwen   text <tool_call>{"name": …, "arguments": {…}}</tool_call> text
    Mistral        text [TOOL_CALLS][{"name": …, "arguments": {…}}, …]
                   text [TOOL_CALLS]name[ARGS]{…}[TOOL_CALLS]…     tokenizers from version 11 on
    Llama 3        {"name": …, "parameters": {…}}; {…}     with <|python_tag|> before it, or without
    GLM-4.5        text <tool_call>name <arg_key>…</arg_key> <arg_value>…</arg_value> … </tool_call>
    Qwen3-Coder    text <tool_call> <function=name> <parameter=…> … </parameter> … </function>
                   </tool_call>

What turns out to be no call is text as a whole, tags in it too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from pagoda.models.tool_prompt import ToolFormat
from pagoda.server.call_parser import CallParser
from pagoda.server.held_text import num_held
from pagoda.server.marked_arguments import ArgumentMarks, MarkedArguments
from pagoda.server.stepping_reader import SteppingReader
from pagoda.server.tool_calls import AnswerReader

_SPACE = r"[ \t\r\n]"
_SPACES = rf"{_SPACE}{{0,64}}"
_NAME = r"[\w.-]{1,128}"

Schemas = Mapping[str, Mapping[str, Any]]
"""Of the arguments of the tools that may be called, by the tools' names."""


class TaggedCalls(SteppingReader):
    """Calls behind an opening tag, anywhere in the text."""

    _HEAD = rf"{_SPACES}(?=[\[{{])"
    _HEAD_SO_FAR = _SPACES

    def __init__(self, names: frozenset[str], opening: str, closing: str = "") -> None:
        super().__init__(names)
        self._opening = opening
        self._closing = closing
        self._head_of_call = re.compile(re.escape(opening) + self._HEAD)
        self._head_so_far = re.compile(re.escape(opening) + self._HEAD_SO_FAR)
        self._behind = re.compile(f"{_SPACES}{re.escape(closing)}")
        self._behind_so_far = re.compile(f"{_SPACES}(?:{_beginning_of(closing)})")
        self._spaces: list[tuple[str, int]] = []
        """White space that belongs to the text if more of it follows, or if there is no call; and
        where it stands in the answer."""
        self._step = self._in_text

    def _finish(self) -> None:
        if not self._num_calls:
            self._say_spaces()

    def _in_text(self, finished: bool) -> bool:
        start = self._text.find(self._opening, self._at)
        end = start if start >= 0 else len(self._text)
        if start < 0 and not finished:
            end -= num_held(self._text[self._at :], self._opening)
        said, self._at = self._text[self._at : end], end
        self._say(said)
        self._step = self._in_text if start < 0 else self._at_head
        return start >= 0

    def _at_head(self, finished: bool) -> bool:
        match = self._head_of_call.match(self._text, self._at)
        if match is not None:
            return self._enter_value(match.end(), self._name_in(match))
        if self._may_become(self._head_so_far, finished):
            return False
        self._at += len(self._opening)
        self._refuse(self._opening)
        return True

    def _name_in(self, head: re.Match[str]) -> str | None:
        """The tool's name, where it stands in front of the value."""
        return None

    def _behind_call(self, finished: bool) -> bool:
        if self._closing:
            match = self._behind.match(self._text, self._at)
            if match is not None:
                self._at = match.end()
            elif self._may_become(self._behind_so_far, finished):
                return False
        self._step = self._in_text
        return True

    def _refuse(self, text: str) -> None:
        self._say(text)
        self._step = self._in_text

    def _say(self, text: str) -> None:
        """`text` stands in front of where the reader is."""
        said = text.rstrip()
        spaces = text[len(said) :]
        if said:
            self._say_spaces()
            self._reading.say(said, self._place - len(text))
        self._spaces.append((spaces, self._place - len(spaces)))

    def _say_spaces(self) -> None:
        for spaces, start in self._spaces:
            self._reading.say(spaces, start)
        self._spaces = []


class MistralCalls(TaggedCalls):
    """Mistral's two forms: a list of calls, or a call's name in front of its arguments."""

    _NAMED = (
        rf"{_SPACES}({_NAME}){_SPACE}?"
        rf"(?:\[CALL_ID\]\w{{1,32}})?(?:\[ARGS\])?{_SPACE}?(?=\{{)"
    )
    _HEAD = rf"(?:{_NAMED}|{TaggedCalls._HEAD})"
    _HEAD_SO_FAR = rf"{_SPACES}[\w.\[\] -]*"

    def __init__(self, names: frozenset[str]) -> None:
        super().__init__(names, "[TOOL_CALLS]")

    def _name_in(self, head: re.Match[str]) -> str | None:
        name: str | None = head[1]
        return name


class MarkedCalls(TaggedCalls):
    """A call's name, and its arguments each between marks."""

    _MARKS: ArgumentMarks
    _CLOSING = ""

    def __init__(self, schemas: Schemas) -> None:
        super().__init__(frozenset(schemas), "<tool_call>", self._CLOSING)
        self._schemas = schemas

    def _name_in(self, head: re.Match[str]) -> str:
        return head[1]

    def _begin_value(self, name: str | None) -> CallParser:
        assert name is not None, "a head has it"
        return MarkedArguments(self._MARKS, self._schemas, name, num_before=self._num_calls)


class GLMCalls(MarkedCalls):
    """GLM-4.5's: names and values of arguments are marked each."""

    _HEAD = rf"{_SPACES}({_NAME}){_SPACES}(?=<arg_key>|</tool_call>)"
    _HEAD_SO_FAR = rf"{_SPACES}[\w.-]*{_SPACES}(?:</?[a-z_]*)?"
    _MARKS = ArgumentMarks(
        "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "</tool_call>", own_lines=False
    )


class QwenCoderCalls(MarkedCalls):
    """Qwen3-Coder's: marks have the names in them, and values lines of their own."""

    _HEAD = rf"{_SPACES}<function=({_NAME})>"
    _HEAD_SO_FAR = rf"{_SPACES}(?:<[a-z]*(?:=[\w.-]*)?)?"
    _MARKS = ArgumentMarks("<parameter=", ">", "", "</parameter>", "</function>", own_lines=True)
    _CLOSING = "</tool_call>"


class BareCalls(SteppingReader):
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
        self._refuse("")
        return True

    def _behind_call(self, finished: bool) -> bool:
        match = self._BETWEEN.match(self._text, self._at)
        if match is not None:
            self._at = match.end()
        if self._at == len(self._text):
            return False
        if self._text[self._at] == "{":
            return self._enter_value(self._at)
        self._refuse("")
        return True

    def _refuse(self, text: str) -> None:
        self._reading.say(text, self._place - len(text))
        self._step = self._in_text

    def _in_text(self, finished: bool) -> bool:
        self._reading.say(self._text[self._at :], self._place)
        self._at = len(self._text)
        return False


_READERS: dict[ToolFormat, Callable[[Schemas], AnswerReader]] = {
    "glm45": GLMCalls,
    "hermes": lambda schemas: TaggedCalls(frozenset(schemas), "<tool_call>", "</tool_call>"),
    "llama": lambda schemas: BareCalls(frozenset(schemas)),
    "mistral": lambda schemas: MistralCalls(frozenset(schemas)),
    "qwen3_coder": QwenCoderCalls,
}


def begin_reading(form: ToolFormat, schemas: Schemas) -> AnswerReader:
    """A reader of one answer of that form, which may call the tools that `schemas` names."""
    return _READERS[form](schemas)


def _beginning_of(text: str) -> str:
    """A pattern for the first characters of `text`, as many as there are."""
    return "|".join(re.escape(text[:size]) for size in range(len(text), -1, -1))
