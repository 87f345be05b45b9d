"""Arguments of calls: JSON within texts of a body, bounded before it is read."""

from __future__ import annotations

import json
import threading
from typing import Any

import httpx
import pytest

from pagoda.engine.checked_tokenizer import MOST_CHARACTERS_PER_TOKEN
from pagoda.errors import ContextLengthError, InvalidRequestError
from pagoda.server.call_arguments import CallArguments
from pagoda.server.value_limit import MAX_MEMBERS, MAX_VALUES
from server.fake_engine import MAX_MODEL_LEN, FakeEngine

pytestmark = pytest.mark.anyio
LONG = 2**15
"""A model's length whose characters are more than the values that a request may have."""
CHAT, TOKENIZE, RESPONSES = "/v1/chat/completions", "/tokenize", "/v1/responses"
LARGE = {"unknown": "x" * 2**14}
"""Makes a body one that is read in a thread."""
USER = {"role": "user", "content": "hi"}


def body_of(url: str, *texts: str) -> dict[str, Any]:
    """A conversation in which the assistant has called with these arguments."""
    if url == RESPONSES:
        call = {"type": "function_call", "call_id": "1", "name": "f"}
        return {"input": [USER, *[{**call, "arguments": text} for text in texts]]}
    calls = [{"id": "1", "function": {"name": "f", "arguments": text}} for text in texts]
    return {"messages": [USER, {"role": "assistant", "tool_calls": calls}]}


def numbers(num: int) -> str:
    """So many values in an object: itself, a list, and what is in that."""
    return '{"a":[' + "0," * (num - 3) + "0]}"


@pytest.fixture
def unread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing may be made of arguments."""

    def loads(text: str) -> None:
        raise AssertionError("read before it was measured")

    monkeypatch.setattr(json, "loads", loads)


@pytest.mark.usefixtures("unread")
@pytest.mark.parametrize(
    ("text", "limit"),
    [
        (numbers(MAX_VALUES + LONG + 1), f"at most {MAX_VALUES + LONG:,}"),
        ('{"a":[' + "[]," * MAX_MEMBERS + "0]}", f"at most {MAX_MEMBERS:,}"),
        ("7" * (MOST_CHARACTERS_PER_TOKEN * LONG + 1), f"{MOST_CHARACTERS_PER_TOKEN * LONG}"),
    ],
    ids=["values", "lists", "characters"],
)
def test_too_much_is_refused_before_it_is_read(text: str, limit: str) -> None:
    with pytest.raises(InvalidRequestError, match=limit) as refused:
        CallArguments(LONG).read(text)
    assert refused.value.field == "messages"


@pytest.mark.parametrize("between", ["{}", "", '"', '{"open'])
def test_all_arguments_have_one_bound(between: str) -> None:
    arguments, half = CallArguments(LONG), numbers((MAX_VALUES + LONG) // 2 + 1)
    assert isinstance(arguments.read(half), dict)
    arguments.read(between)
    with pytest.raises(InvalidRequestError, match="the arguments of all calls"):
        arguments.read(half)


def test_characters_count_together() -> None:
    arguments = CallArguments(1)
    assert arguments.read("x" * MOST_CHARACTERS_PER_TOKEN) == "x" * MOST_CHARACTERS_PER_TOKEN
    with pytest.raises(ContextLengthError):
        arguments.read("x")


@pytest.mark.parametrize("url", [CHAT, TOKENIZE, RESPONSES])
async def test_a_conversation_of_long_arguments_is_too_long(
    url: str, client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    half = "7" * (MOST_CHARACTERS_PER_TOKEN * MAX_MODEL_LEN // 2 + 1)
    response = await client.post(url, json=body_of(url, half, half))
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["code"] == "context_length_exceeded"
    assert "characters of arguments" in error["message"]
    assert not engine.started


@pytest.mark.parametrize("url", [CHAT, TOKENIZE, RESPONSES])
async def test_arguments_are_read_once_and_beside_the_event_loop(
    url: str, client: httpx.AsyncClient, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    readers: list[threading.Thread] = []
    read = CallArguments.read

    def noted(self: CallArguments, text: str) -> dict[str, Any] | str:
        readers.append(threading.current_thread())
        return read(self, text)

    monkeypatch.setattr(CallArguments, "read", noted)
    response = await client.post(url, json={**body_of(url, '{"a": 1}'), **LARGE})
    assert response.status_code == 200, response.text
    [reader] = readers
    assert reader is not threading.current_thread()
    [call] = engine.tokenizer.messages[-1]["tool_calls"]
    assert call["function"]["arguments"] == {"a": 1}
