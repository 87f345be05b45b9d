from __future__ import annotations

from typing import Any

import httpx
import pytest

from limit_values import another
from pagoda.cache_hint import CacheHint
from pagoda.server.sampling_fields import SAMPLING_FIELDS
from server.fake_engine import MODEL, FakeEngine, engine_failure, words
from server.sse import completion_text, events_of

pytestmark = pytest.mark.anyio
URL = "/v1/completions"


async def test_a_completion_has_openais_shape(client: httpx.AsyncClient) -> None:
    response = await client.post(URL, json={"model": MODEL, "prompt": "hello", "max_tokens": 3})
    assert response.status_code == 200
    body = response.json()
    assert body.pop("id").startswith("cmpl-")
    assert body.pop("created") > 0
    assert body == {
        "object": "text_completion",
        "model": MODEL,
        "choices": [
            {"index": 0, "text": "zero one two", "logprobs": None, "finish_reason": "length"}
        ],
        "usage": {
            "prompt_tokens": 5,
            "completion_tokens": 3,
            "total_tokens": 8,
            "prompt_tokens_details": {"cached_tokens": 0},
        },
    }


async def test_the_second_time_comes_from_the_cache(client: httpx.AsyncClient) -> None:
    cached = []
    for salt in ("", "", "other"):
        body = {"prompt": "hello", "cache_salt": salt}
        usage = (await client.post(URL, json=body)).json()["usage"]
        cached.append(usage["prompt_tokens_details"]["cached_tokens"])
    assert cached == [0, 4, 0]


async def test_sixteen_tokens_by_default(client: httpx.AsyncClient) -> None:
    body = (await client.post(URL, json={"prompt": "hello"})).json()
    assert body["usage"]["completion_tokens"] == 16


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("one", ["one"]),
        (["one", "two"], ["one", "two"]),
        ([1, 2, 3], [[1, 2, 3]]),
        ([[1, 2], [3]], [[1, 2], [3]]),
    ],
)
async def test_every_form_of_prompt(
    prompt: object, prompts: list[object], client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    body = (await client.post(URL, json={"prompt": prompt, "max_tokens": 2, "n": 2})).json()
    assert [asked["prompt"] for asked in engine.asked] == prompts
    texts = ["zero one", "one two"] * len(prompts)
    assert [(c["index"], c["text"]) for c in body["choices"]] == list(enumerate(texts))
    assert body["usage"]["completion_tokens"] == 4 * len(prompts)


async def test_prompts_of_one_request_run_side_by_side(
    client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    await client.post(URL, json={"prompt": ["a", "b", "c"], "max_tokens": 4})
    assert len(engine.started) == 3
    assert engine.stats().num_requests_running == 0


async def test_every_sampling_field_reaches_the_engine(
    client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    fields = {
        "n": 2,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 7,
        "min_p": 0.1,
        "seed": 11,
        "repetition_penalty": 1.1,
        "presence_penalty": 0.2,
        "frequency_penalty": 0.3,
        "max_tokens": 5,
        "min_tokens": 1,
        "stop_token_ids": (5,),
        "ignore_eos": True,
        "include_stop_str_in_output": True,
        "skip_special_tokens": False,
        "logprobs": 2,
        "prompt_logprobs": 1,
    }
    extra = {"logit_bias": {"7": -5}, "stop": "end", "priority": -3, "cache_salt": "s", "user": "u"}
    extra |= {"kv_retention": "window:64", "cache_hint": "session"}
    response = await client.post(URL, json={"prompt": "x", **fields, **extra})
    assert response.status_code == 200
    [asked] = engine.asked
    sampling = asked["sampling"]
    assert {name: getattr(sampling, name) for name in fields} == fields
    assert dict(sampling.logit_bias) == {7: -5}
    assert sampling.stop == ("end",)
    assert (asked["options"].priority, asked["options"].cache_salt) == (-3, "s")
    assert asked["options"].kv_retention == "window:64"
    assert asked["options"].cache_hint is CacheHint.SESSION


@pytest.mark.parametrize("hint", ["keep", "", "PIN", 1, ["pin"]])
async def test_a_hint_that_is_none_is_refused_by_name(
    hint: object, client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    response = await client.post(URL, json={"prompt": "x", "cache_hint": hint})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "cache_hint"
    assert engine.asked == []


@pytest.mark.parametrize("name", SAMPLING_FIELDS)
async def test_a_number_or_switch_reaches_the_engine_by_its_name(
    name: str, client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    value = another(name)
    chat = {"messages": [{"role": "user", "content": "x"}]}
    for url, body in ((URL, {"prompt": "x"}), ("/v1/chat/completions", chat)):
        response = await client.post(url, json={**body, name: value})
        assert response.status_code == 200, response.text
        assert getattr(engine.asked.pop()["sampling"], name) == value
        response = await client.post(url, json={**body, name: "x"})
        assert response.status_code == 400
        assert response.json()["error"]["param"] == name


async def test_null_means_the_default(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    nulls = dict.fromkeys(("temperature", "n", "stop", "logprobs", "seed", "suffix", "stream"))
    assert (await client.post(URL, json={"prompt": "x", **nulls})).status_code == 200
    assert engine.asked[0]["sampling"].temperature == 1.0


async def test_logprobs(client: httpx.AsyncClient) -> None:
    body = {"prompt": "ab", "max_tokens": 2, "logprobs": 2, "prompt_logprobs": 0}
    [choice] = (await client.post(URL, json=body)).json()["choices"]
    assert choice["logprobs"] == {
        "tokens": ["zero", "one"],
        "token_logprobs": [-1.0, -1.0],
        "top_logprobs": [
            {"zero": -1.0, "é": -0.5, "": -9999.0},
            {"one": -1.0, "é": -0.5, "": -9999.0},
        ],
        "text_offset": [0, 4],
    }
    assert choice["prompt_logprobs"] == [
        None,
        {str(ord("b")): {"logprob": -2.0, "rank": 4, "decoded_token": "b"}},
    ]


@pytest.mark.parametrize("extra", [{}, {"n": 3}, {"logprobs": 2, "n": 2}, {"prompt": ["a", "b"]}])
async def test_streaming_equals_not_streaming(
    extra: dict[str, object], client: httpx.AsyncClient
) -> None:
    body = {"prompt": "hello", "max_tokens": 5, **extra}
    whole = (await client.post(URL, json=body)).json()
    streamed = await client.post(URL, json={**body, "stream": True})
    assert streamed.headers["content-type"].startswith("text/event-stream")
    events = events_of(streamed.text)
    assert {event["object"] for event in events} == {"text_completion"}
    assert len({event["id"] for event in events}) == 1
    for choice in whole["choices"]:
        index = choice["index"]
        parts = [c for event in events for c in event["choices"] if c["index"] == index]
        assert completion_text(events, index) == choice["text"]
        assert [part["finish_reason"] for part in parts] == [None] * 4 + ["length"]
        if choice["logprobs"]:
            for name, values in choice["logprobs"].items():
                assert [item for part in parts for item in part["logprobs"][name]] == values


async def test_usage_comes_last_when_asked_for(client: httpx.AsyncClient) -> None:
    body = {"prompt": ["ab", "c"], "max_tokens": 2, "stream": True}
    plain = events_of((await client.post(URL, json=body)).text)
    assert all("usage" not in event for event in plain)
    body["stream_options"] = {"include_usage": True}
    *chunks, last = events_of((await client.post(URL, json=body)).text)
    assert all("usage" not in chunk for chunk in chunks)
    assert last["choices"] == []
    assert last["usage"] == {
        "prompt_tokens": 3,
        "completion_tokens": 4,
        "total_tokens": 7,
        "prompt_tokens_details": {"cached_tokens": 1},
    }


async def test_a_failure_in_mid_stream_is_an_event_without_internals(
    client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    engine.fail = engine_failure()
    response = await client.post(URL, json={"prompt": "hello", "stream": True})
    first, error = events_of(response.text)
    assert first["choices"][0]["text"] == words(0, 1)[0]
    assert error["error"]["type"] == "server_error"
    assert "secret" not in response.text


@pytest.mark.parametrize(
    ("url", "extra", "field"),
    [
        (URL, {}, None),
        (URL, {"max_tokens": 4}, "max_tokens"),
        ("/v1/chat/completions", {}, None),
        ("/v1/chat/completions", {"max_tokens": 4, "max_completion_tokens": None}, "max_tokens"),
        (
            "/v1/chat/completions",
            {"max_tokens": 4, "max_completion_tokens": 5},
            "max_completion_tokens",
        ),
    ],
)
async def test_a_length_that_is_asked_for_must_fit(
    url: str,
    extra: dict[str, Any],
    field: str | None,
    client: httpx.AsyncClient,
    engine: FakeEngine,
) -> None:
    asked = {"prompt": "x"} if url == URL else {"messages": [{"role": "user", "content": "x"}]}
    assert (await client.post(url, json={**asked, **extra})).status_code == 200
    assert engine.asked[0]["options"].max_tokens_field == field
