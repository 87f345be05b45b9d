"""Requests of clients that are too large to install here, as they were recorded.

Each file of `recorded_requests` names a client and its version. Addresses, names of models and long
texts were replaced, and of tools with schemas of the same kind one was kept.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from server.fake_engine import FakeEngine

pytestmark = pytest.mark.anyio
FILES = sorted(Path(__file__).with_name("recorded_requests").glob("*.json"))
RECORDED = {file.stem: json.loads(file.read_text()) for file in FILES}
REQUESTS = [(name, place) for name in RECORDED for place in range(len(RECORDED[name]["requests"]))]
WARNED = {"codex": ["tools.web_search is ignored"]}


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
    """With a model as long as agents expect."""
    monkeypatch.setattr("server.fake_engine.MAX_MODEL_LEN", 2**16)
    engine = FakeEngine()
    engine.max_model_len = 2**16
    engine.says = ["Hel", "lo"]
    return engine


async def ask(client: httpx.AsyncClient, recorded: dict[str, Any]) -> httpx.Response:
    response = await client.post(recorded["path"], json=recorded["body"])
    assert response.status_code == 200, response.text
    return response


@pytest.mark.parametrize(("name", "place"), REQUESTS)
async def test_a_recorded_request_is_answered(
    name: str, place: int, client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    recorded = RECORDED[name]["requests"][place]
    body: dict[str, Any] = recorded["body"]
    response = await ask(client, recorded)
    sampling: Any = engine.asked[0]["sampling"]
    if is_forced(body):
        assert sampling.structured_outputs is not None
        assert sampling.structured_outputs.field == "tools"
    else:
        assert text_of(response) == "Hello"
    warnings = [each for told in told_by(response) for each in told.get("warnings") or ()]
    assert [each.split(":")[0] for each in warnings] == WARNED.get(name, [])


@pytest.mark.parametrize("name", [name for name in RECORDED if name != "claude_code"])
async def test_what_a_recorded_client_was_told_comes_back(
    name: str, client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    """The template gets a call with its result wherever a client sends them."""
    for recorded in RECORDED[name]["requests"]:
        said = recorded["body"].get("messages") or recorded["body"].get("input") or ()
        sent = [each for each in said if isinstance(each, dict)]
        results = [
            each
            for each in sent
            if each.get("role") == "tool" or each.get("type") == "function_call_output"
        ]
        engine.tokenizer.messages = []
        await ask(client, recorded)
        told = engine.tokenizer.messages
        assert sum(each["role"] == "tool" for each in told) == len(results)
        assert sum(len(each.get("tool_calls", ())) for each in told) == len(results)


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
