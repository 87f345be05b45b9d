"""Calls of tools, found in what the model says.

    Hermes, Qwen   text <tool_call>{"name": …, "arguments": {…}}</tool_call> text
    Mistral        text [TOOL_CALLS][{"name": …, "arguments": {…}}, …]
    Llama 3        {"name": …, "parameters": {…}}; {…}     with <|python_tag|> before it, or without

What looks like a call but is none, because it is no JSON or names no tool, stays text.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from pagoda.models.tool_prompt import ToolFormat


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_no_number)


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call: the tool's name, and its arguments as JSON text."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Reading:
    """What an answer holds, as far as it can be told by now; both only grow."""

    content: str
    """The text outside the calls."""
    calls: tuple[ToolCall, ...]


@dataclass(frozen=True, slots=True)
class _Block:
    """Calls that stand in one piece, and the position behind it."""

    calls: tuple[ToolCall, ...]
    end: int


class ToolReader(ABC):
    """Reads answers of one form. Keeps no state: it is given the whole text each time."""

    @abstractmethod
    def read(self, text: str, *, finished: bool) -> Reading:
        """Everything in `text`, which may grow unless `finished`.

        The content of an unfinished text never holds what might turn out to be a call.
        """


class TaggedCalls(ToolReader):
    """Calls behind an opening tag, anywhere in the text."""

    def __init__(self, names: frozenset[str], opening: str, closing: str = "") -> None:
        self._names = names
        self._opening = opening
        self._closing = closing

    def read(self, text: str, *, finished: bool) -> Reading:
        content, position = "", 0
        calls: tuple[ToolCall, ...] = ()
        while (start := text.find(self._opening, position)) >= 0:
            block = self._block(text, start + len(self._opening), finished)
            if block is not None:
                content, calls = content + text[position:start], calls + block.calls
                position = block.end
            elif finished:
                content += text[position : start + len(self._opening)]
                position = start + len(self._opening)
            else:
                return Reading((content + text[position:start]).rstrip(), calls)
        rest = text[position:]
        if not finished:
            rest = rest[: len(rest) - _num_held(rest, self._opening)]
        content += rest
        # The white space between text and calls belongs to neither.
        return Reading(content.rstrip() if calls or not finished else content, calls)

    def _block(self, text: str, position: int, finished: bool) -> _Block | None:
        if self._closing and not finished and self._closing not in text[position:]:
            return None  # so that a long call is not parsed again at every token
        found = _json_at(text, position)
        if found is None:
            return None
        value, end = found
        behind = _past_space(text, end)
        if self._closing and text.startswith(self._closing, behind):
            end = behind + len(self._closing)
        elif self._closing and not finished:
            return None
        return _block_of(value, end, self._names)


class BareCalls(ToolReader):
    """Calls that are the whole answer: JSON objects from its beginning on, with `;` between."""

    _TAG = "<|python_tag|>"

    def __init__(self, names: frozenset[str]) -> None:
        self._names = names

    def read(self, text: str, *, finished: bool) -> Reading:
        start = text.lstrip()
        block = self._calls(start)
        if not finished and (self._TAG.startswith(start) or start.startswith(("{", self._TAG))):
            return Reading("", block.calls)
        return Reading(start[block.end :], block.calls) if block.calls else Reading(text, ())

    def _calls(self, text: str) -> _Block:
        """The calls at the beginning of `text`."""
        calls: tuple[ToolCall, ...] = ()
        position = _past_space(text, len(self._TAG) if text.startswith(self._TAG) else 0)
        while text.startswith("{", position):
            found = _json_at(text, position)
            block = None if found is None else _block_of(*found, self._names)
            if block is None:
                break
            calls += block.calls
            position = _past_space(text, block.end, " \t\r\n;")
        return _Block(calls, position)


class WholeCalls(ToolReader):
    """An answer that a schema makes a list of calls, as `tool_choice` "required" does."""

    def __init__(self, names: frozenset[str]) -> None:
        self._names = names

    def read(self, text: str, *, finished: bool) -> Reading:
        if not finished:
            return Reading("", ())
        found = _json_at(text, _past_space(text, 0))
        block = None if found is None else _block_of(*found, self._names)
        return Reading(text, ()) if block is None else Reading("", block.calls)


class WholeArguments(ToolReader):
    """An answer that a schema makes the arguments of one tool, as a named `tool_choice` does."""

    def __init__(self, name: str) -> None:
        self._name = name

    def read(self, text: str, *, finished: bool) -> Reading:
        return Reading("", (ToolCall(self._name, text),) if finished else ())


class FirstCall(ToolReader):
    """Takes the first call alone, where a client wants no more than one."""

    def __init__(self, reader: ToolReader) -> None:
        self._reader = reader

    def read(self, text: str, *, finished: bool) -> Reading:
        reading = self._reader.read(text, finished=finished)
        return replace(reading, calls=reading.calls[:1])


_READERS: dict[ToolFormat, Callable[[frozenset[str]], ToolReader]] = {
    "hermes": lambda names: TaggedCalls(names, "<tool_call>", "</tool_call>"),
    "mistral": lambda names: TaggedCalls(names, "[TOOL_CALLS]"),
    "llama": BareCalls,
}


def reader_of(form: ToolFormat, names: frozenset[str]) -> ToolReader:
    """Finds calls of the tools `names` in answers of that form."""
    return _READERS[form](names)


def _block_of(value: Any, end: int, names: frozenset[str]) -> _Block | None:
    """The calls that a JSON value is; None where it is none."""
    calls = [_call(each, names) for each in (value if isinstance(value, list) else [value])]
    found = tuple(call for call in calls if call is not None)
    return _Block(found, end) if found and len(found) == len(calls) else None


def _call(value: Any, names: frozenset[str]) -> ToolCall | None:
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return None
    if value["name"] not in names:
        return None
    arguments = value.get("arguments", value.get("parameters", {}))
    if not isinstance(arguments, str):  # some models write the text of the JSON
        arguments = json.dumps(arguments, ensure_ascii=False)
    try:
        arguments.encode()
    except UnicodeEncodeError:  # half of a surrogate pair, which no answer can carry
        return None
    return ToolCall(value["name"], arguments)


def _json_at(text: str, position: int) -> tuple[Any, int] | None:
    """The JSON value behind `position`, white space aside, and where it ends."""
    try:
        return _DECODER.raw_decode(text, _past_space(text, position))
    except (ValueError, RecursionError):
        return None


def _past_space(text: str, position: int, skipped: str = " \t\r\n") -> int:
    while position < len(text) and text[position] in skipped:
        position += 1
    return position


def _num_held(text: str, opening: str) -> int:
    """Characters at the end of `text` that may be the beginning of `opening`."""
    sizes = range(min(len(opening) - 1, len(text)), 0, -1)
    return next((size for size in sizes if text.endswith(opening[:size])), 0)
