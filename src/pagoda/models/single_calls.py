"""Conversations for templates that take one call of a tool in each of the assistant's messages.

assistant  calls a, b            assistant  calls a
tool       result of a    ──>    tool       result of a
tool       result of b           assistant  calls b
                                 tool       result of b
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any

Message = Mapping[str, Any]


def with_single_calls(messages: Sequence[Message]) -> list[Message]:
    """The same conversation with the calls of each message one by one, each before its results.

    Results belong to calls by `tool_call_id`, or where they have none by their order; those of no
    call follow the last one.
    """
    told: list[Message] = []
    position = 0
    while position < len(messages):
        message = messages[position]
        position += 1
        told.append(message)
        if has_several_calls(message):
            results = [*takewhile(_is_result, messages[position:])]
            position += len(results)
            told[-1:] = _one_by_one(message, results)
    return told


def has_several_calls(message: Message) -> bool:
    calls = message.get("tool_calls")
    return isinstance(calls, Sequence) and len(calls) > 1


def _is_result(message: Message) -> bool:
    return message.get("role") == "tool"


def _one_by_one(message: Message, results: list[Message]) -> Iterator[Message]:
    """Each call, and behind it its results. What was said beside the calls goes with the first."""
    said = message
    for call in message["tool_calls"]:
        yield {**said, "tool_calls": [call]}
        said = {"role": message["role"], "content": ""}
        own = _results_of(call, results)
        yield from own
        results = [each for each in results if not any(each is one for one in own)]
    yield from results


def _results_of(call: Any, results: Sequence[Message]) -> list[Message]:
    call_id = call.get("id") if isinstance(call, Mapping) else None
    own = [each for each in results if call_id and each.get("tool_call_id") == call_id]
    return own or [each for each in results if not each.get("tool_call_id")][:1]
