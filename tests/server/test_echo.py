"""Completions that begin with their prompt."""

from __future__ import annotations

import logging

import httpx
import pytest

from pagoda.server.logprob_bound import MAX_TOLD_LOGPROBS
from server.fake_engine import FakeEngine
from server.sse import completion_text, events_of

pytestmark = pytest.mark.anyio
URL = "/v1/completions"
IDS = [97] * 60


@pytest.mark.parametrize("prompt", ["ab", [97, 98]])
async def test_the_answer_begins_with_the_prompt(prompt: object, client: httpx.AsyncClient) -> None:
    body = {"prompt": prompt, "echo": True, "max_tokens": 2, "n": 2}
    whole = (await client.post(URL, json=body)).json()
    assert [choice["text"] for choice in whole["choices"]] == ["abzero one", "abone two"]
    assert whole["usage"]["completion_tokens"] == 4
    events = events_of((await client.post(URL, json={**body, "n": 1, "stream": True})).text)
    assert completion_text(events) == "abzero one"


async def test_each_prompt_is_echoed_once(client: httpx.AsyncClient) -> None:
    body = {"prompt": ["ab", "cd"], "echo": True, "max_tokens": 1}
    choices = (await client.post(URL, json=body)).json()["choices"]
    assert [choice["text"] for choice in choices] == ["abzero", "cdzero"]


async def test_logprobs_begin_with_the_prompts(client: httpx.AsyncClient) -> None:
    body = {"prompt": "ab", "echo": True, "max_tokens": 1, "logprobs": 0}
    [choice] = (await client.post(URL, json=body)).json()["choices"]
    assert choice["logprobs"] == {
        "tokens": ["a", "b", "zero"],
        "token_logprobs": [None, -2.0, -1.0],
        "top_logprobs": [None, {"b": -2.0}, {"zero": -1.0}],
        "text_offset": [0, 1, 2],
    }
    assert "prompt_logprobs" not in choice


@pytest.mark.parametrize("prompt", ["abcd", [97, 98, 99, 100]])
@pytest.mark.parametrize("max_tokens", [0, 1])
async def test_what_is_echoed_of_a_prompt_that_is_cut_is_what_is_left(
    prompt: object, max_tokens: int, client: httpx.AsyncClient
) -> None:
    answer = ["zero"][:max_tokens]
    body = {"prompt": prompt, "truncate_prompt_tokens": 2, "max_tokens": max_tokens}
    asked = {**body, "echo": True, "logprobs": 0, "return_token_ids": True}
    whole = (await client.post(URL, json=asked)).json()["choices"]
    events = events_of((await client.post(URL, json={**asked, "stream": True})).text)
    for choice in (*whole, *events[0]["choices"]):
        assert choice["prompt_token_ids"] == [99, 100]
        assert choice["text"] == "".join(["cd", *answer])
        assert choice["logprobs"]["tokens"] == ["c", "d", *answer]
        assert choice["logprobs"]["text_offset"] == [0, 1, 2][: 2 + max_tokens]


async def test_a_text_that_is_not_cut_is_echoed_as_it_was_given(
    client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    body = {"prompt": "abcd", "truncate_prompt_tokens": 8, "echo": True, "max_tokens": 1}
    [choice] = (await client.post(URL, json=body)).json()["choices"]
    assert choice["text"] == "abcdzero"
    assert engine.asked[0]["prompt"] == "abcd"


async def test_log_probabilities_of_what_was_cut_off_are_not_counted(
    client: httpx.AsyncClient,
) -> None:
    prompt = [97] * (MAX_TOLD_LOGPROBS // 21)
    body = {"prompt": prompt, "n": 2, "max_tokens": 1, "prompt_logprobs": 20}
    cut = await client.post(URL, json={**body, "truncate_prompt_tokens": 2})
    assert (cut.status_code, cut.json()["usage"]["prompt_tokens"]) == (200, 2)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("logprobs", "prompt_logprobs"), [(None, 2), (1, 5), (2, 0), (1, 1), (0, None)]
)
async def test_log_probabilities_of_a_prompt_are_told_by_the_fields_that_ask_for_them(
    logprobs: int | None, prompt_logprobs: int | None, stream: bool, client: httpx.AsyncClient
) -> None:
    asked = {"logprobs": logprobs, "prompt_logprobs": prompt_logprobs, "stream": stream}
    body = {"prompt": "ab", "echo": True, "max_tokens": 1, **asked}
    answer = await client.post(URL, json=body)
    [chunk] = events_of(answer.text) if stream else [answer.json()]
    [choice] = chunk["choices"]
    assert (choice["logprobs"] is None) == (logprobs is None)
    assert ("prompt_logprobs" in choice) == (prompt_logprobs is not None)
    if logprobs is not None:
        told = [("b", -2.0), ("é", -0.5), ("", -1.5)][: 1 + logprobs]
        assert choice["logprobs"]["top_logprobs"][1] == dict(told)
    if prompt_logprobs is not None:
        first, second = choice["prompt_logprobs"]
        assert first is None
        assert list(second) == [str(ord("b")), "1", "2"][: 1 + prompt_logprobs]


@pytest.mark.parametrize("number", [-1, 21])
async def test_a_number_beside_that_of_an_echo_is_checked_too(
    number: int, client: httpx.AsyncClient
) -> None:
    body = {"prompt": "ab", "echo": True, "logprobs": 2, "prompt_logprobs": number}
    refused = await client.post(URL, json=body)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "prompt_logprobs")


async def test_what_is_told_in_the_echo_and_beside_it_counts_twice(
    client: httpx.AsyncClient,
) -> None:
    num_told = 128 * 2 * len(IDS) * 21
    assert num_told < MAX_TOLD_LOGPROBS < 2 * num_told
    body = {"prompt": [IDS] * 128, "n": 2, "max_tokens": 1, "echo": True}
    one, other = {"logprobs": 20}, {"prompt_logprobs": 20}
    asked = [{**body, **fields} for fields in (one, other, one | other)]
    answers = [await client.post(URL, json=each) for each in asked]
    assert [each.status_code for each in answers] == [200, 200, 400]
    assert answers[-1].json()["error"]["param"] == "logprobs"


async def test_a_text_is_scored_without_an_answer(
    client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    body = {"prompt": "ab", "echo": True, "max_tokens": 0, "logprobs": 1}
    answer = (await client.post(URL, json=body)).json()
    [choice] = answer["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("ab", "length")
    assert choice["logprobs"]["tokens"] == ["a", "b"]
    assert answer["usage"] == {
        "prompt_tokens": 2,
        "completion_tokens": 0,
        "total_tokens": 2,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    streamed = await client.post(URL, json={**body, "stream": True})
    assert completion_text(events_of(streamed.text)) == "ab"
    assert [asked["sampling"].prompt_alone for asked in engine.asked] == [True, True]


async def test_what_is_not_told_is_not_logged(
    client: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "pagoda.access")
    await client.post(URL, json={"prompt": ["ab", "c"], "echo": True, "max_tokens": 0})
    [record] = caplog.records
    fields = record.fields  # type: ignore[attr-defined]
    assert (fields["prompt_tokens"], fields["output_tokens"]) == (3, 0)


async def test_no_tokens_without_an_echo_are_refused(client: httpx.AsyncClient) -> None:
    refused = await client.post(URL, json={"prompt": "ab", "max_tokens": 0})
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "max_tokens"
