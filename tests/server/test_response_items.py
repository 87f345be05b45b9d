"""The items of `/v1/responses`: the same whole and in events, with the tokens of their texts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from pagoda.engine.outputs import CompletionOutput, Logprob
from pagoda.request import SamplingParams
from pagoda.server.app import create_app
from pagoda.server.responses_api import open_items
from server.calling_answers import NAMES, OSLO, READ, ROME, hermes
from server.fake_engine import FakeEngine
from server.test_response_store import URL
from server.test_responses import ask, events

pytestmark = pytest.mark.anyio
TOOLS = [{"type": "function", "name": name} for name in sorted(NAMES)]
PROBABLY: dict[str, Any] = {"include": ["message.output_text.logprobs"]}
_FROM_MODELS = (
    "no call", "two calls", "text before", "text after", "an unknown tool", "no JSON before a call",
    "arguments that break", "cut behind the arguments", "half a tag at the end",
)  # fmt: skip
SAID: dict[str, str] = {
    **{name: READ[name][1] for name in _FROM_MODELS},
    "text around calls": f"A {hermes(ROME)}\nB <b> {hermes(OSLO)} C\n",
    "nothing": "",
}


class SpellingEngine(FakeEngine):
    """Says what is in `says`, in which each character is a token, and ends with one of no text."""

    def _choice(
        self, index: int, count: int, limit: int, sampling: SamplingParams
    ) -> CompletionOutput:
        choice = super()._choice(index, count, limit, replace(sampling, logprobs=None))
        ends = choice.finish_reason is not None
        said = [*choice.text, *([""] * ends)]
        ids = [ord(each) if each else 0 for each in said]
        told = [{i: Logprob(-1.0, 1, each)} for i, each in zip(ids, said, strict=True)]
        asked = told if sampling.logprobs is not None else None
        return replace(choice, token_ids=ids, logprobs=asked)


@pytest.fixture(scope="module")
async def app(anyio_backend: str) -> FastAPI:
    return create_app(SpellingEngine())  # type: ignore[arg-type]


def without_ids(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{k: v for k, v in item.items() if k not in ("id", "call_id")} for item in items]


def tokens_of(part: dict[str, Any]) -> list[str]:
    return [each["token"] for each in part["logprobs"]]


@pytest.mark.parametrize("size", [1, 7])
@pytest.mark.parametrize("name", SAID)
async def test_items_are_the_same_whole_and_in_events(
    name: str, size: int, client: httpx.AsyncClient, engine: SpellingEngine
) -> None:
    text = SAID[name]
    engine.says = [text[start : start + size] for start in range(0, len(text), size)] or [""]
    streamed = await events(client, tools=TOOLS, **PROBABLY)
    engine.says = [text]
    whole = await ask(client, tools=TOOLS, **PROBABLY)
    done = [each["item"] for each in streamed if each["type"] == "response.output_item.done"]
    assert streamed[-1]["response"]["output"] == done
    assert without_ids(done) == without_ids(whole["output"])
    for index, item in enumerate(done):
        ours = [each for each in streamed if each.get("output_index") == index]
        deltas = [each for each in ours if "delta" in each]
        if item["type"] == "message":
            [part] = item["content"]
            assert "".join(each["delta"] for each in deltas) == part["text"]
            assert "".join(tokens_of(part)) == part["text"]
            assert [token for each in deltas for token in tokens_of(each)] == tokens_of(part)
            assert ours[-2]["part"] == part
            assert ours[-3]["logprobs"] == part["logprobs"]
        else:
            assert "".join(each["delta"] for each in deltas) == item["arguments"]


async def test_texts_and_calls_keep_their_order(
    client: httpx.AsyncClient, engine: SpellingEngine
) -> None:
    engine.says = [SAID["text around calls"]]
    told = (await ask(client, tools=TOOLS))["output"]
    said = [item.get("arguments") or item["content"][0]["text"] for item in told]
    assert said == ["A", ROME, " \nB <b>", OSLO, "  C"]


async def test_a_token_without_text_is_told_with_the_message_that_it_ends(
    client: httpx.AsyncClient, engine: SpellingEngine
) -> None:
    engine.says = ["Hi"]
    [message] = (await ask(client, tools=TOOLS, **PROBABLY))["output"]
    assert tokens_of(message["content"][0]) == ["H", "i", ""]
    engine.says = [hermes(ROME)]
    [call] = (await ask(client, tools=TOOLS, **PROBABLY))["output"]
    assert "content" not in call


async def test_each_log_probability_is_written_once(
    client: httpx.AsyncClient, engine: SpellingEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[str] = []
    write = open_items.items_json

    def noted(entries: Any) -> bytes:
        written.extend(each["token"] for each in entries)
        return write(entries)

    monkeypatch.setattr(open_items, "items_json", noted)
    engine.says = ["Hel", "lo"]
    streamed = await events(client, **PROBABLY)
    assert written == [*"Hello", ""]
    kept = await client.get(f"{URL}/{streamed[-1]['response']['id']}")
    assert kept.json() == streamed[-1]["response"]
    assert written == [*"Hello", ""]
