"""Where a call must be made no stop string may end it: in each API, whole and streamed."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from server.calling_answers import ROME
from server.fake_engine import MODEL, FakeEngine

pytestmark = pytest.mark.anyio
CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
HELLO = [{"role": "user", "content": "hi"}]
CITY = {"type": "object", "properties": {"city": {"type": "string"}}}
FUNCTION = {"name": "weather", "parameters": CITY}
TOOL = {"type": "function", "function": FUNCTION}
OFFERED = {"name": "weather", "input_schema": CITY}
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": HELLO, "tools": [TOOL], "stop": ["o"]},
    RESPONSES: {"input": "hi", "tools": [{"type": "function", **FUNCTION}], "stop": "o"},
    MESSAGES: {"model": MODEL, "messages": HELLO, "max_tokens": 9, "tools": [OFFERED],
               "stop_sequences": ["o"]},
}  # fmt: skip
CHOICES: dict[str, dict[str, Any]] = {
    CHAT: {
        "any": "required",
        "named": {"type": "function", "function": {"name": "weather"}},
        "free": "auto",
        "none": "none",
    },
    RESPONSES: {
        "any": "required",
        "named": {"type": "function", "name": "weather"},
        "free": "auto",
        "none": "none",
    },
    MESSAGES: {
        "any": {"type": "any"},
        "named": {"type": "tool", "name": "weather"},
        "free": {"type": "auto"},
        "none": {"type": "none"},
    },
}
CALLS = f'[{{"name": "weather", "parameters": {ROME}}}]'


def told_in(stream: str) -> list[Any]:
    """What the events of any API's stream say."""
    lines = [line for line in stream.splitlines() if line.startswith("data: {")]
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def warnings_in(told: Any) -> list[str]:
    """Of an answer or of its events, wherever they stand."""
    if isinstance(told, list):
        return [warning for each in told for warning in warnings_in(each)]
    if not isinstance(told, dict):
        return []
    others = [each for name, each in told.items() if name != "warnings"]
    return [*told.get("warnings", ()), *warnings_in(others)]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("choice", CHOICES[CHAT])
@pytest.mark.parametrize("url", BODIES)
async def test_stops_are_asked_for_where_the_answer_may_be_text(
    url: str, choice: str, stream: bool, client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    engine.says = [{"any": CALLS, "named": ROME}.get(choice, "I do not know.")]
    body = {**BODIES[url], "tool_choice": CHOICES[url][choice], "stream": stream}
    response = await client.post(url, json=body)
    assert response.status_code == 200, response.text
    is_forced = choice in ("any", "named")
    assert engine.asked[-1]["sampling"].stop == (() if is_forced else ("o",))
    said = {*warnings_in(told_in(response.text) if stream else response.json())}
    field = "stop_sequences" if url == MESSAGES else "stop"
    reason = "an answer that must be a call ends where the call does"
    assert said == ({f"{field} is ignored: {reason}"} if is_forced else set())


@pytest.mark.parametrize("choice", CHOICES[CHAT])
@pytest.mark.parametrize("url", [CHAT, RESPONSES])
async def test_stop_tokens_likewise(
    url: str, choice: str, client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    engine.says = [{"any": CALLS, "named": ROME}.get(choice, "I do not know.")]
    body = {**BODIES[url], "stop": None, "stop_token_ids": [5]}
    response = await client.post(url, json={**body, "tool_choice": CHOICES[url][choice]})
    assert response.status_code == 200, response.text
    is_forced = choice in ("any", "named")
    assert engine.asked[-1]["sampling"].stop_token_ids == (() if is_forced else (5,))
    assert len(warnings_in(response.json())) == is_forced


@pytest.mark.parametrize("choice", CHOICES[CHAT])
@pytest.mark.parametrize("url", BODIES)
async def test_a_stop_that_is_none_is_refused_all_the_same(
    url: str, choice: str, client: httpx.AsyncClient
) -> None:
    field = "stop_sequences" if url == MESSAGES else "stop"
    body = {**BODIES[url], field: [""], "tool_choice": CHOICES[url][choice]}
    response = await client.post(url, json=body)
    assert response.status_code == 400
    assert f"{field}=" in response.text


@pytest.mark.parametrize("url", BODIES)
async def test_without_stops_nothing_is_said(url: str, client: httpx.AsyncClient) -> None:
    body = {name: value for name, value in BODIES[url].items() if not name.startswith("stop")}
    response = await client.post(url, json={**body, "tool_choice": CHOICES[url]["any"]})
    assert response.status_code == 200, response.text
    assert "warnings" not in response.json()
