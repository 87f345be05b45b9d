"""Requests of clients that are too large to install here, as they were recorded.

Each file of `recorded_requests` names a client and its version. Addresses, names of models and long
texts were replaced, and of tools with schemas of the same kind one was kept.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from pagoda.server.app import create_app
from server.conftest import client_of
from server.fake_engine import FakeEngine

pytestmark = pytest.mark.anyio
FILES = sorted(Path(__file__).with_name("recorded_requests").glob("*.json"))
RECORDED = {file.stem: json.loads(file.read_text()) for file in FILES}
WARNED = {"codex": ["tools.web_search is ignored"]}


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
    """With a model as long as agents expect."""
    monkeypatch.setattr("server.fake_engine.MAX_MODEL_LEN", 2**16)
    engine = FakeEngine()
    engine.max_model_len = 2**16
    engine.says = ["Hel", "lo"]
    return engine


@pytest.fixture
async def client(engine: FakeEngine) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(create_app(engine)) as client:
        yield client


async def ask(client: httpx.AsyncClient, recorded: dict[str, Any]) -> httpx.Response:
    response = await client.post(recorded["path"], json=recorded["body"])
    assert response.status_code == 200, response.text
    return response


@pytest.mark.parametrize("name", RECORDED)
async def test_recorded_requests_are_answered(
    name: str, client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    for recorded in RECORDED[name]["requests"]:
        body: dict[str, Any] = recorded["body"]
        engine.tokenizer.messages = []
        response = await ask(client, recorded)
        sampling: Any = engine.asked[-1]["sampling"]
        if is_forced(body):
            assert sampling.structured_outputs.field == "tools"
        else:
            assert text_of(response) == "Hello"
        warnings = [each for told in told_by(response) for each in told.get("warnings") or ()]
        stops = ["stop is ignored"] if is_forced(body) and body.get("stop") else []
        assert [each.split(":")[0] for each in warnings] == [*WARNED.get(name, []), *stops]
        roles = [each["role"] for each in engine.tokenizer.messages]
        assert roles.count("tool") == num_results(body)


async def test_codex_gets_calls_of_functions_in_namespaces(
    client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    """The recorded conversation has such a call, which the model made by the full name."""
    recorded = RECORDED["codex"]["requests"][-1]
    await ask(client, recorded)
    [call] = [call for each in engine.tokenizer.messages for call in each.get("tool_calls", ())]
    offered = [tool["function"]["name"] for tool in engine.tokenizer.tools]
    assert call["function"]["name"] in offered
    assert "." in call["function"]["name"]


async def test_claude_code_finds_tools_without_a_new_beginning(
    client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    """What a search has found is described in its result: what stood before stays as it was."""
    told = []
    for recorded in RECORDED["claude_code"]["requests"]:
        await ask(client, recorded)
        told.append((engine.tokenizer.tools, engine.tokenizer.messages))
    (tools, messages), (tools_after, messages_after) = told
    assert tools == tools_after
    assert messages == messages_after[: len(messages)]
    result = messages_after[-1]
    found = [json.loads(line)["function"]["name"] for line in result["content"].split("\n")]
    assert found == ["WebFetch", "WebSearch"]


def num_results(body: dict[str, Any]) -> int:
    """Of tools, in the conversation that was sent."""
    told = json.dumps(body.get("messages") or body.get("input"))
    kinds = ('"role": "tool"', '"type": "function_call_output"', '"type": "tool_result"')
    return sum(told.count(kind) for kind in kinds)


def is_forced(body: dict[str, Any]) -> bool:
    choice = body.get("tool_choice") or "auto"
    kind = choice if isinstance(choice, str) else choice["type"]
    return kind in ("required", "function", "any", "tool")


def told_by(response: httpx.Response) -> list[dict[str, Any]]:
    """The answer, or all chunks of it; of a response in events the last one, which has all."""
    if not response.headers["content-type"].startswith("text/event-stream"):
        return [response.json()]
    data = [line.removeprefix("data: ") for line in response.text.splitlines()]
    chunks = [json.loads(each) for each in data if each.startswith("{")]
    return [chunks[-1]["response"]] if "response" in chunks[-1] else chunks


def text_of(response: httpx.Response) -> str:
    """What was said, in any of the four shapes."""
    return "".join(map(_text_in, told_by(response)))


def _text_in(told: dict[str, Any]) -> str:
    if "output" in told:
        return "".join(part["text"] for item in told["output"] for part in item["content"])
    if told.get("type") == "message":
        return "".join(block["text"] for block in told["content"])
    if told.get("type") == "content_block_delta":
        return str(told["delta"]["text"])
    said = ""
    for choice in told.get("choices", ()):
        message = choice.get("delta") or choice.get("message") or {}
        said += choice.get("text") or message.get("content") or ""
    return said
