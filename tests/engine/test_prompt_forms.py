"""Prompts and messages in the forms that programs give them in."""

from __future__ import annotations

import numpy as np
import pytest

from pagoda.engine.prompt_forms import (
    as_templates_want,
    conversations_of,
    prompt_of,
    prompts_of,
    tools_of,
)
from pagoda.errors import InvalidRequestError

TURN = {"role": "user", "content": "hello"}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("text", ["text"]),
        ([1, 2], [[1, 2]]),
        ((1, 2), [[1, 2]]),
        (np.array([1, 2]), [[1, 2]]),
        ([np.int64(1), np.uint8(2)], [[1, 2]]),
        ({"prompt": "text"}, ["text"]),
        ([{"prompt_token_ids": [1]}, "text", [2]], [[1], "text", [2]]),
        ([], []),
    ],
)
def test_prompts_come_alone_or_in_a_list(given, expected) -> None:
    assert prompts_of(given) == expected


@pytest.mark.parametrize(
    "given", [7, {"text": "x"}, {"prompt": "x", "prompt_token_ids": [1]}, [{"prompts": "x"}]]
)
def test_other_forms_are_refused_by_name(given) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        prompts_of(given)
    assert refused.value.field == "prompts"


@pytest.mark.parametrize("given", [TURN, [TURN], [TURN, TURN], [[TURN]]])
def test_who_gives_messages_for_a_prompt_is_told_where_they_go(given) -> None:
    with pytest.raises(InvalidRequestError, match="are for chat and stream_chat") as refused:
        prompts_of(given)
    assert refused.value.field == "prompts"


@pytest.mark.parametrize("given", [TURN, [TURN]])
def test_a_single_prompt_is_called_so_where_it_is_refused(given) -> None:
    with pytest.raises(InvalidRequestError, match="are for chat and stream_chat") as refused:
        prompt_of(given)
    assert refused.value.field == "prompt"


@pytest.mark.parametrize("given", [["one", "two"], [[1, 2], [3]]])
def test_several_prompts_are_not_taken_for_one(given) -> None:
    with pytest.raises(InvalidRequestError, match="must be one prompt") as refused:
        prompt_of(given)
    assert refused.value.field == "prompt"


@pytest.mark.parametrize("given", ["hello", b"hello", TURN, 7, None])
def test_a_conversation_is_a_list(given) -> None:
    with pytest.raises(InvalidRequestError, match="must be a list of messages") as refused:
        conversations_of(given)
    assert refused.value.field == "messages"


def test_conversations_come_alone_or_in_a_list() -> None:
    assert conversations_of([TURN]) == [[TURN]]
    assert conversations_of([[TURN], [TURN, TURN]]) == [[TURN], [TURN, TURN]]


def test_the_text_parts_of_a_message_are_joined() -> None:
    parts = [{"type": "text", "text": "a "}, {"type": "text", "text": "pagoda"}]
    given = [{"role": "user", "content": parts, "name": "x"}, TURN]
    assert as_templates_want(given) == [{"role": "user", "content": "a pagoda", "name": "x"}, TURN]
    assert given[0]["content"] is parts, "the caller's message is left as it is"


@pytest.mark.parametrize(
    "part", ["text", {"type": "image_url", "image_url": "x"}, {"type": "text", "text": 7}, {}]
)
def test_a_part_that_is_no_text_is_refused(part) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        as_templates_want([{"role": "user", "content": [part]}])
    assert refused.value.field == "messages"


def test_arguments_of_calls_that_are_text_are_read() -> None:
    def calling(*arguments: object) -> dict[str, object]:
        calls = [{"id": "1", "function": {"name": "f", "arguments": each}} for each in arguments]
        return {"role": "assistant", "tool_calls": calls}

    given = calling('{"x": 1}', "", "five", "[1]", {"x": 1})
    assert as_templates_want([given]) == [calling({"x": 1}, {}, "five", "[1]", {"x": 1})]
    assert given == calling('{"x": 1}', "", "five", "[1]", {"x": 1}), "left as it is"
    odd = {"role": "assistant", "tool_calls": ["x", {}, {"function": "f"}]}
    assert as_templates_want([odd]) == [odd]


def test_what_is_no_message_is_left_for_the_tokenizer_to_refuse() -> None:
    assert as_templates_want(["hello"]) == ["hello"]  # type: ignore[list-item]


@pytest.mark.parametrize("role", ["system", "user"])
def test_a_message_that_says_nothing_is_refused(role: str) -> None:
    with pytest.raises(InvalidRequestError, match="has content") as refused:
        as_templates_want([TURN, {"role": role, "contents": "hi"}])
    assert refused.value.field == "messages"
    called = {"role": "assistant", "tool_calls": []}
    assert as_templates_want([called]) == [called]


CLOCK = {"type": "function", "function": {"name": "clock"}}


@pytest.mark.parametrize("given", [[CLOCK], (CLOCK, CLOCK), [], ()])
def test_tools_are_taken_as_they_are(given) -> None:
    assert tools_of(given) is given
    assert tools_of(None) == ()


@pytest.mark.parametrize(
    "given",
    [
        *("clock", b"clock", 5, CLOCK, [1], ["clock"], [{"type": "function"}]),
        [{**CLOCK, "type": "web_search"}],
        [{"function": {"name": "clock"}}],
        [{"type": "function", "function": {"name": 5}}],
        [{"type": "function", "function": {"name": ""}}],
        [{"type": "function", "function": {"parameters": {}}}],
        [{"type": "function", "function": "clock"}],
        [CLOCK, None],
    ],
)
def test_what_is_no_tool_is_refused_by_name(given) -> None:
    with pytest.raises(InvalidRequestError, match=r"must be a list of \{'type'") as refused:
        tools_of(given)
    assert refused.value.field == "tools"
