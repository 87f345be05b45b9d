"""Bad input over HTTP: a 4xx in OpenAI's shape, and nobody else notices."""

from __future__ import annotations

import asyncio
import json
import time

import httpx
import pytest

from server.fake_engine import MAX_MODEL_LEN, FakeEngine, engine_failure
from server.sse import completion_text, events_of

pytestmark = pytest.mark.anyio
COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
RESPONSES = "/v1/responses"
HELLO = [{"role": "user", "content": "hi"}]
ASKED = {COMPLETIONS: {"prompt": "x"}, CHAT: {"messages": HELLO}, RESPONSES: {"input": "x"}}

BAD_COMPLETIONS = {
    "no prompt": ({}, "prompt"),
    "empty prompt": ({"prompt": ""}, "prompt"),
    "no prompts": ({"prompt": []}, "prompt"),
    "an empty one among prompts": ({"prompt": ["a", ""]}, "prompt"),
    "too long": ({"prompt": "x" * 100}, "prompt"),
    "prompt of a wrong type": ({"prompt": {"text": "x"}}, "prompt"),
    "mixed prompt": ({"prompt": [1, "x"]}, "prompt"),
    "prompt of booleans": ({"prompt": [True]}, "prompt"),
    "lone surrogate": ({"prompt": "\ud800"}, "prompt"),
    "negative temperature": ({"prompt": "x", "temperature": -0.5}, "temperature"),
    "temperature as words": ({"prompt": "x", "temperature": "warm"}, "temperature"),
    "a number of two points": ({"prompt": "x", "temperature": "0.5.1"}, "temperature"),
    "n as a fraction in text": ({"prompt": "x", "n": "1.5"}, "n"),
    "a number with an underscore": ({"prompt": "x", "max_tokens": "1_0"}, "max_tokens"),
    "no token is allowed": ({"prompt": "x", "allowed_token_ids": []}, "allowed_token_ids"),
    "a bad word without letters": ({"prompt": "x", "bad_words": [""]}, "bad_words"),
    "a prompt truncated to nothing": (
        {"prompt": "x", "truncate_prompt_tokens": 0},
        "truncate_prompt_tokens",
    ),
    "tools": ({"prompt": "x", "tools": [{}]}, "tools"),
    "two limits": ({"prompt": "x", "n_predict": -2}, "n_predict"),
    "NaN": ({"prompt": "x", "temperature": float("nan")}, "temperature"),
    "infinity": ({"prompt": "x", "top_p": float("inf")}, "top_p"),
    "n of a billion": ({"prompt": "x", "n": 10**9}, "n"),
    "n as a fraction": ({"prompt": "x", "n": 1.5}, "n"),
    "n as a truth value": ({"prompt": "x", "n": True}, "n"),
    "a million logprobs": ({"prompt": "x", "logprobs": 10**6}, "logprobs"),
    "too many prompts": ({"prompt": ["x"] * 129}, "prompt"),
    "too many choices": ({"prompt": ["x"] * 100, "n": 11}, "n"),
    "no tokens": ({"prompt": "x", "max_tokens": 0}, "max_tokens"),
    "min over max": ({"prompt": "x", "max_tokens": 2, "min_tokens": 3}, "min_tokens"),
    "empty stop": ({"prompt": "x", "stop": [""]}, "stop"),
    "thousands of stops": ({"prompt": "x", "stop": ["a"] * 5000}, "stop"),
    "bias of no token": ({"prompt": "x", "logit_bias": {"a": 1}}, "logit_bias"),
    **{
        f"a bias under {key!r}": ({"prompt": "x", "logit_bias": {key: 1}}, "logit_bias")
        for key in ("7_042", " 7042 ", "07042", "+7042", "-1", "٧", "7.0", "")
    },
    "bias out of range": ({"prompt": "x", "logit_bias": {"1": 1e9}}, "logit_bias"),
    "huge priority": ({"prompt": "x", "priority": 10**30}, "priority"),
    "options without stream": (
        {"prompt": "x", "stream_options": {"include_usage": True}},
        "stream_options",
    ),
    "suffix": ({"prompt": "x", "suffix": "y"}, "suffix"),
    "best of": ({"prompt": "x", "best_of": 3}, "best_of"),
}

BAD_CHATS = {
    "no messages": ({}, "messages"),
    "empty messages": ({"messages": []}, "messages"),
    "messages of a wrong type": ({"messages": "hi"}, "messages"),
    "unknown role": ({"messages": [{"role": "wizard", "content": "hi"}]}, "messages"),
    "an image": (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}]},
        "messages",
    ),
    "half a tool call": (
        {"messages": [{"role": "assistant", "content": "", "tool_calls": [{"id": "1"}]}]},
        "messages",
    ),
    "half a tool": ({"messages": HELLO, "tools": [{"type": "function"}]}, "tools"),
    "a format": ({"messages": HELLO, "response_format": {"type": "xml"}}, "response_format"),
    "half a format": (
        {"messages": HELLO, "response_format": {"type": "json_schema", "json_schema": {}}},
        "response_format",
    ),
    "top without logprobs": ({"messages": HELLO, "top_logprobs": 2}, "top_logprobs"),
    "too long": ({"messages": [{"role": "user", "content": "x" * 100}]}, "messages"),
}


def assert_refused(response: httpx.Response, param: str | None, status: int = 400) -> str:
    assert response.status_code == status
    [(name, error)] = response.json().items()
    assert name == "error"
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    if param is not None:
        assert error["param"] == param
    assert "Traceback" not in error["message"]
    assert len(error["message"]) < 400
    return error["message"]


async def post(client: httpx.AsyncClient, url: str, body: object) -> httpx.Response:
    """As a careless client would: NaN, infinity and lone surrogates are sent as they are."""
    headers = {"content-type": "application/json"}
    return await client.post(url, content=json.dumps(body), headers=headers)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", BAD_COMPLETIONS)
async def test_bad_completions(name: str, stream: bool, client: httpx.AsyncClient) -> None:
    body, param = BAD_COMPLETIONS[name]
    if name == "options without stream" and stream:
        body = {"prompt": "x", "stream_options": 5}
    assert_refused(await post(client, COMPLETIONS, {**body, "stream": stream}), param)


@pytest.mark.parametrize("name", BAD_CHATS)
async def test_bad_chats(name: str, client: httpx.AsyncClient) -> None:
    body, param = BAD_CHATS[name]
    assert_refused(await post(client, CHAT, body), param)


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"\xff\xfe", b"[1,2]", b'"text"', b"null", b"[" * 100_000, b'{"n":' + b"9" * 6000],
    ids=["nothing", "half", "not UTF-8", "list", "text", "null", "deep", "a long number"],
)
@pytest.mark.parametrize("url", [COMPLETIONS, CHAT])
async def test_bodies_that_are_no_request(
    url: str, content: bytes, client: httpx.AsyncClient
) -> None:
    headers = {"content-type": "application/json"}
    assert_refused(await client.post(url, content=content, headers=headers), None)


async def test_of_many_wrong_items_one_is_told(client: httpx.AsyncClient) -> None:
    started = time.monotonic()
    body = {"prompt": [None] * 200_000}
    message = assert_refused(await post(client, COMPLETIONS, body), "prompt")
    assert message.count("valid") <= 4
    assert time.monotonic() - started < 20


async def test_the_error_names_field_value_and_limit(client: httpx.AsyncClient) -> None:
    response = await client.post(COMPLETIONS, json={"prompt": "x", "temperature": -1})
    message = assert_refused(response, "temperature")
    assert message == "temperature=-1.0: must be at least 0 and at most 100"


@pytest.mark.parametrize(
    ("field", "content", "told"),
    [
        ("messages", b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
         "messages[0].content='\\ud800': must be text without half of a surrogate pair or a list"),
        (None, b'{"messages": [{"role": "user", "content": "x"}], "a\\ud800": 1}',
         "the name of a field='a\\ud800': must be text without half of a surrogate pair"),
        ("messages", b'{"messages": [{"role": "user", "content": "x", "a\\ud800": 1}]}',
         "the name of a field in messages[0]='a\\ud800': must be text without half of a surrogate "
         "pair"),
    ],
)  # fmt: skip
async def test_half_of_a_surrogate_pair_is_told_as_what_it_is(
    field: str | None, content: bytes, told: str, client: httpx.AsyncClient
) -> None:
    headers = {"content-type": "application/json"}
    response = await client.post(CHAT, content=content, headers=headers)
    assert assert_refused(response, field) == told
    assert response.json()["error"]["param"] == field


async def test_a_wrong_type_names_the_item(client: httpx.AsyncClient) -> None:
    response = await client.post(CHAT, json={"messages": [*HELLO, {"role": "user", "content": 5}]})
    message = assert_refused(response, "messages")
    assert message.startswith("messages[1].content=5: must be text or ")


IMAGE = {"type": "image_url", "image_url": {"url": "x"}}
CALL = {"id": "1", "function": {"arguments": "{}"}}
INNER_FIELDS = {
    "a content": ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content=3: "),
    "a role": ({"messages": [*HELLO, {"role": "x"}]}, "messages[1].role='x': "),
    "no role": ({"messages": [{"content": "x"}]}, "messages[0].role: is missing"),
    "an image": (
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, IMAGE]}]},
        "messages[0].content[1].type='image_url': only parts of type 'text' are covered: no images",
    ),
    "half a part": (
        {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
        "messages[0].content[0].text: is missing",
    ),
    "half a tool": (
        {"messages": HELLO, "tools": [{"type": "function"}]},
        "tools[0].function: is missing",
    ),
    "half a choice": (
        {"messages": HELLO, "tool_choice": {"type": "function"}},
        "tool_choice.function: is missing",
    ),
    "half a call": (
        {"messages": [{"role": "assistant", "tool_calls": [CALL]}]},
        "messages[0].tool_calls[0].function.name: is missing",
    ),
    "named like a type": ({"messages": [{"role": "user", "content": {"str": 1}}]}, "messages[0]."),
}


@pytest.mark.parametrize("name", INNER_FIELDS)
async def test_an_inner_field_is_named(name: str, client: httpx.AsyncClient) -> None:
    body, beginning = INNER_FIELDS[name]
    message = assert_refused(await post(client, CHAT, body), beginning.split("[")[0].split(".")[0])
    assert message.startswith(beginning)


RENAMED = {
    "top_logprobs": ({"logprobs": True, "top_logprobs": 21}, "21: must be between 0 and 20"),
    "max_completion_tokens": (
        {"max_completion_tokens": 0},
        f"0: must be between 1 and {MAX_MODEL_LEN}",
    ),
    "min_tokens": ({"min_tokens": -1}, f"-1: must be between 0 and {2**31 - 1}"),
}


@pytest.mark.parametrize("field", RENAMED)
async def test_the_field_that_was_sent_is_named(field: str, client: httpx.AsyncClient) -> None:
    body, told = RENAMED[field]
    message = assert_refused(await post(client, CHAT, {"messages": HELLO, **body}), field)
    assert message == f"{field}={told}"


@pytest.mark.parametrize("value", [0, -2, 10**30])
@pytest.mark.parametrize(
    ("url", "field", "limit"),
    [
        (CHAT, "max_tokens", f"between 1 and {MAX_MODEL_LEN}"),
        (CHAT, "n_predict", f"between 1 and {MAX_MODEL_LEN}, or -1 for as many as fit"),
        (COMPLETIONS, "max_tokens", f"between 1 and {MAX_MODEL_LEN}, or 0 with echo"),
        (RESPONSES, "max_output_tokens", f"between 1 and {MAX_MODEL_LEN}"),
    ],
)
@pytest.mark.parametrize("extra", [{}, {"truncate_prompt_tokens": -1}])
async def test_a_length_is_refused_with_the_lengths_that_are_taken(
    url: str, field: str, limit: str, value: int, extra: dict[str, int], client: httpx.AsyncClient
) -> None:
    body = {**ASKED[url], field: value, **extra}
    message = assert_refused(await post(client, url, body), field)
    assert message == f"{field}={value}: must be {limit}"


@pytest.mark.parametrize(
    ("url", "body"),
    [
        (COMPLETIONS, {"prompt": "x" * 100}),
        (CHAT, {"messages": [{"role": "user", "content": "x" * 100}]}),
    ],
)
async def test_what_is_too_long_has_the_code_that_clients_look_for(
    url: str, body: dict[str, object], client: httpx.AsyncClient
) -> None:
    response = await client.post(url, json=body)
    message = assert_refused(response, None)
    assert message.startswith("This model's maximum context length is 64 tokens. However, you ")
    assert response.json()["error"]["code"] == "context_length_exceeded"
    other = await client.post(url, json={**body, "temperature": "hot"})
    assert other.json()["error"]["code"] is None


@pytest.mark.parametrize("url", [COMPLETIONS, CHAT])
async def test_an_unknown_model_is_not_found(url: str, client: httpx.AsyncClient) -> None:
    body = {"model": "gpt-5", "prompt": "x", "messages": HELLO}
    response = await client.post(url, json=body)
    message = assert_refused(response, "model", status=404)
    assert message == "model='gpt-5': this server has 'fake-model' and 'fake'"
    assert response.json()["error"]["code"] == "model_not_found"


async def test_unknown_fields_that_change_nothing_are_ignored(client: httpx.AsyncClient) -> None:
    body = {"prompt": "x", "metadata": {"a": 1}, "store": True, "echo": False, "best_of": 1}
    assert (await client.post(COMPLETIONS, json=body)).status_code == 200
    neutral = {"tools": [], "tool_choice": "auto", "response_format": {"type": "text"}}
    assert (await client.post(CHAT, json={"messages": HELLO, **neutral})).status_code == 200


async def test_unknown_routes_and_methods(client: httpx.AsyncClient) -> None:
    assert_refused(await client.get("/v1/nothing"), None, status=404)
    response = await client.get(COMPLETIONS)
    assert_refused(response, None, status=405)
    assert response.headers["allow"] == "POST"
    said = response.json()["error"]["message"]
    assert said == f"{COMPLETIONS} takes POST requests, not GET"


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("/v1/embeddings", "vectors"),
        ("/score", "scores"),
        ("/v1/images/generations", "text alone"),
        ("/v1/threads/x/runs", "keeps nothing"),
        ("/v1/embeddingsx", "/v1/chat/completions"),
        ("/v1/tokenize", "it is /tokenize"),
        ("/chat/completions", "it is /v1/chat/completions"),
        ("/reset_prefix_cache", "--dev-mode"),
        ("/docs", "/openapi.json"),
        ("/chat/completions/more", "/openapi.json"),
    ],
)
async def test_routes_that_are_known_from_elsewhere(
    path: str, reason: str, client: httpx.AsyncClient
) -> None:
    message = assert_refused(await client.post(path, json={}), None, status=404)
    assert f"POST {path}:" in message
    assert reason in message


@pytest.mark.parametrize("failure", [engine_failure(), RuntimeError("a secret path")])
async def test_a_failing_engine_is_a_500_without_internals(
    failure: Exception, client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    engine.fail = failure
    response = await client.post(COMPLETIONS, json={"prompt": "x"})
    assert response.status_code == 500
    assert response.json()["error"]["type"] == "server_error"
    assert "secret" not in response.text
    engine.fail = None
    assert (await client.post(COMPLETIONS, json={"prompt": "x"})).status_code == 200


async def test_bad_input_does_not_disturb_a_running_stream(
    client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    body = {"prompt": "hello", "stream": True, "max_tokens": 6}
    undisturbed = (await client.post(COMPLETIONS, json=body)).text
    engine.hold = asyncio.Event()
    running = asyncio.create_task(client.post(COMPLETIONS, json=body))
    while len(engine.started) < 2:
        await asyncio.sleep(0)
    async with asyncio.timeout(60):
        for bad, param in BAD_COMPLETIONS.values():
            assert_refused(await post(client, COMPLETIONS, bad), param)
    engine.hold.set()
    events = events_of((await running).text)
    assert completion_text(events) == completion_text(events_of(undisturbed))


async def test_a_refused_prompt_ends_its_neighbours(
    client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    engine.hold = asyncio.Event()
    assert_refused(await client.post(COMPLETIONS, json={"prompt": ["a", "", "b"]}), "prompt")
    assert len(engine.aborted) == len(engine.started)
