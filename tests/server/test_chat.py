from __future__ import annotations

import httpx
import pytest

from server.fake_engine import MODEL, WORDS, FakeEngine
from server.sse import chat_text, events_of

pytestmark = pytest.mark.anyio
URL = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "hi"}]


async def test_a_chat_completion_has_openais_shape(client: httpx.AsyncClient) -> None:
    response = await client.post(URL, json={"model": MODEL, "messages": HELLO, "max_tokens": 2})
    assert response.status_code == 200
    body = response.json()
    assert body.pop("id").startswith("chatcmpl-")
    assert body.pop("created") > 0
    assert body == {
        "object": "chat.completion",
        "model": MODEL,
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "zero one"},
                "logprobs": None,
                "finish_reason": "length",
            }
        ],
        "usage": {
            "prompt_tokens": len("<user>hi"),
            "completion_tokens": 2,
            "total_tokens": len("<user>hi") + 2,
            "prompt_tokens_details": {"cached_tokens": 0},
        },
    }


async def test_messages_reach_the_template(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages = [
        {"role": "developer", "content": "be kind"},
        {"role": "user", "content": parts, "name": "ada"},
        {"role": "assistant", "content": None},
    ]
    assert (await client.post(URL, json={"messages": messages})).status_code == 200
    prompt = "".join(map(chr, engine.asked[0]["prompt"]))
    assert prompt == "<system>be kind<user>ab<assistant>"


@pytest.mark.parametrize(
    ("fields", "limit"),
    [
        ({}, None),
        ({"max_tokens": 4}, 4),
        ({"max_completion_tokens": 5}, 5),
        ({"max_tokens": 4, "max_completion_tokens": 6}, 6),
    ],
)
async def test_the_length_of_an_answer(
    fields: dict[str, int], limit: int | None, client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    await client.post(URL, json={"messages": HELLO, **fields})
    assert engine.asked[0]["sampling"].max_tokens == limit


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, None),
        ({"logprobs": False}, None),
        ({"logprobs": True}, 0),
        ({"logprobs": True, "top_logprobs": 2}, 2),
    ],
)
async def test_logprobs_reach_the_engine(
    fields: dict[str, object], expected: int | None, client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    await client.post(URL, json={"messages": HELLO, **fields})
    assert engine.asked[0]["sampling"].logprobs == expected


async def test_logprobs_have_openais_shape(client: httpx.AsyncClient) -> None:
    body = {"messages": HELLO, "max_tokens": 1, "logprobs": True, "top_logprobs": 2}
    [choice] = (await client.post(URL, json=body)).json()["choices"]
    zero = {"token": "zero", "logprob": -1.0, "bytes": list(b"zero")}
    accent = {"token": "é", "logprob": -0.5, "bytes": list("é".encode())}
    assert choice["logprobs"] == {"content": [{**zero, "top_logprobs": [accent, zero]}]}


async def test_the_first_chunk_has_the_log_probabilities_of_the_prompt(
    client: httpx.AsyncClient,
) -> None:
    body = {"messages": HELLO, "max_tokens": 2, "n": 2, "prompt_logprobs": 1}
    whole = (await client.post(URL, json=body)).json()
    first, *others = events_of((await client.post(URL, json={**body, "stream": True})).text)
    assert len(whole["prompt_logprobs"]) == whole["usage"]["prompt_tokens"]
    assert first["prompt_logprobs"] == whole["prompt_logprobs"]
    assert not any("prompt_logprobs" in each for each in others)


@pytest.mark.parametrize("extra", [{}, {"n": 3}, {"logprobs": True, "top_logprobs": 1}])
async def test_streaming_equals_not_streaming(
    extra: dict[str, object], client: httpx.AsyncClient
) -> None:
    body = {"messages": HELLO, "max_tokens": 4, **extra}
    whole = (await client.post(URL, json=body)).json()
    events = events_of((await client.post(URL, json={**body, "stream": True})).text)
    assert {event["object"] for event in events} == {"chat.completion.chunk"}
    for choice in whole["choices"]:
        index = choice["index"]
        parts = [c for event in events for c in event["choices"] if c["index"] == index]
        assert parts[0]["delta"] == {"role": "assistant", "content": ""}
        assert chat_text(events, index) == choice["message"]["content"]
        assert [part["finish_reason"] for part in parts] == [None] * 4 + ["length"]
        if choice["logprobs"]:
            content = [token for part in parts[1:] for token in part["logprobs"]["content"]]
            assert content == choice["logprobs"]["content"]


async def test_usage_comes_last_when_asked_for(client: httpx.AsyncClient) -> None:
    options = {"stream": True, "stream_options": {"include_usage": True}}
    response = await client.post(URL, json={"messages": HELLO, **options})
    last = events_of(response.text)[-1]
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == len(WORDS)
    assert last["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}
