"""The server over the default model: what a client sees."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from each_process import MAX_MODEL_LEN
from pagoda.engine.async_engine import AsyncEngine
from server.sse import chat_text, completion_text, events_of

pytestmark = [pytest.mark.anyio, pytest.mark.model]

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
MODEL = "SmolLM2-135M-Instruct"
PARIS = {
    "messages": [{"role": "user", "content": "What is the capital of France?"}],
    "temperature": 0,
    "max_tokens": 32,
}

BAD = [
    (COMPLETIONS, {"prompt": ""}, "prompt"),
    (COMPLETIONS, {"prompt": []}, "prompt"),
    (COMPLETIONS, {"prompt": [49152]}, "prompt"),
    (COMPLETIONS, {"prompt": [-1]}, "prompt"),
    (COMPLETIONS, {"prompt": [1] * MAX_MODEL_LEN}, "prompt"),
    (COMPLETIONS, {"prompt": "word " * 2 * MAX_MODEL_LEN}, "prompt"),
    (COMPLETIONS, {"prompt": "x", "temperature": -1}, "temperature"),
    (COMPLETIONS, {"prompt": "x", "n": 10**9}, "n"),
    (COMPLETIONS, {"prompt": "x", "logprobs": 10**6}, "logprobs"),
    (COMPLETIONS, {"prompt": "x", "stop_token_ids": [10**6]}, "stop_token_ids"),
    (COMPLETIONS, {"prompt": "x", "logit_bias": {"1000000": 1}}, "logit_bias"),
    (COMPLETIONS, {"prompt": {"a": 1}}, "prompt"),
    (COMPLETIONS, {"prompt": [1, 2], "max_tokens": MAX_MODEL_LEN + 1}, "max_tokens"),
    (CHAT, {**PARIS, "max_completion_tokens": MAX_MODEL_LEN + 1}, "max_completion_tokens"),
    (CHAT, {"messages": []}, "messages"),
    (CHAT, {"messages": [{"role": "wizard", "content": "x"}]}, "messages"),
    (CHAT, {**PARIS, "tools": [{"type": "function"}]}, "tools"),
]


async def posted(server: httpx.AsyncClient, url: str, body: dict[str, Any]) -> dict[str, Any]:
    response = await server.post(url, json=body)
    assert response.status_code == 200, response.text
    return response.json()


async def test_the_capital_of_france_comes_from_the_cache_the_second_time(
    server: httpx.AsyncClient,
) -> None:
    first = await posted(server, CHAT, PARIS)
    again = await posted(server, CHAT, PARIS)
    assert first["model"] == MODEL
    [choice] = first["choices"]
    assert "Paris" in choice["message"]["content"]
    assert choice["finish_reason"] == "stop"
    assert again["choices"] == first["choices"]
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    other = await posted(server, CHAT, {**PARIS, "cache_salt": "another"})
    assert other["choices"] == first["choices"]
    assert other["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


@pytest.mark.parametrize(
    "extra",
    [{}, {"n": 2, "temperature": 1, "seed": 7}, {"logprobs": True, "top_logprobs": 2}],
    ids=["greedy", "two seeded choices", "logprobs"],
)
async def test_a_streamed_chat_equals_a_whole_one(
    extra: dict[str, Any], server: httpx.AsyncClient
) -> None:
    body = {**PARIS, "max_tokens": 12, **extra}
    whole = await posted(server, CHAT, body)
    stream = await server.post(
        CHAT, json={**body, "stream": True, "stream_options": {"include_usage": True}}
    )
    *events, last = events_of(stream.text)
    for choice in whole["choices"]:
        index = choice["index"]
        parts = [c for event in events for c in event["choices"] if c["index"] == index]
        assert chat_text(events, index) == choice["message"]["content"]
        assert parts[-1]["finish_reason"] == choice["finish_reason"]
        if choice["logprobs"]:
            content = [token for part in parts[1:] for token in part["logprobs"]["content"]]
            assert content == choice["logprobs"]["content"]
    assert last["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]


async def test_text_and_token_ids_are_the_same_prompt(
    server: httpx.AsyncClient, real_engine: AsyncEngine
) -> None:
    text = "Once upon a time, in a far away"
    token_ids = real_engine.engine.tokenizer.encode(text)
    body = {"prompt": [text, text], "temperature": 0, "max_tokens": 8, "logprobs": 1}
    from_text = await posted(server, COMPLETIONS, body)
    from_ids = await posted(server, COMPLETIONS, {**body, "prompt": [token_ids, token_ids]})
    assert from_ids["choices"] == from_text["choices"]
    first, second = from_text["choices"]
    assert first["text"] == second["text"] == "".join(first["logprobs"]["tokens"])
    assert from_text["usage"]["completion_tokens"] == 16


async def test_stop_strings_and_prompt_logprobs(server: httpx.AsyncClient) -> None:
    body = {"prompt": "1, 2, 3, 4, 5, 6, 7, 8,", "temperature": 0, "max_tokens": 20}
    whole = await posted(server, COMPLETIONS, body)
    assert " 12," in whole["choices"][0]["text"]
    stopped = await posted(server, COMPLETIONS, {**body, "stop": [" 12"], "prompt_logprobs": 1})
    [choice] = stopped["choices"]
    assert choice["text"] == whole["choices"][0]["text"].split(" 12")[0]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", " 12")
    first, *others = choice["prompt_logprobs"]
    assert first is None
    assert len(others) == stopped["usage"]["prompt_tokens"] - 1
    assert all(entry for entry in others)


async def test_tokens_that_are_parts_of_a_character(server: httpx.AsyncClient) -> None:
    asked = {"messages": PARIS["messages"], "logprobs": True, "guided_regex": "🦄"}
    [choice] = (await posted(server, CHAT, asked))["choices"]
    *tokens, _ = choice["logprobs"]["content"]
    assert len(tokens) > 1
    assert b"".join(bytes(each["bytes"]) for each in tokens).decode() == "🦄"
    scored = {"prompt": "A 🦄 of Paris", "max_tokens": 0, "echo": True, "logprobs": 3}
    [choice] = (await posted(server, COMPLETIONS, scored))["choices"]
    told = choice["logprobs"]
    pairs = zip(told["tokens"], told["top_logprobs"], strict=True)
    assert [top and top[token] for token, top in pairs] == told["token_logprobs"]
    assert all(len(top) >= 3 for top in told["top_logprobs"][1:])
    assert sum(token.startswith("bytes:") for token in told["tokens"]) > 1


async def test_bad_input_does_not_disturb_a_running_stream(server: httpx.AsyncClient) -> None:
    body = {"prompt": "Once upon a time", "temperature": 0, "max_tokens": 16, "ignore_eos": True}
    alone = (await posted(server, COMPLETIONS, body))["choices"][0]["text"]
    running = asyncio.create_task(server.post(COMPLETIONS, json={**body, "stream": True}))
    refused = await asyncio.gather(*(server.post(url, json=bad) for url, bad, _ in BAD))
    for (_, bad, field), response in zip(BAD, refused, strict=True):
        assert response.status_code == 400, (bad, response.text)
        assert response.json()["error"]["param"] == field
    assert completion_text(events_of((await running).text)) == alone


async def test_metrics_tell_what_the_engine_did(server: httpx.AsyncClient) -> None:
    await posted(server, CHAT, PARIS)
    figures = await settled_metrics(server)
    assert figures["prefix_cache_queries_total"] > figures["prefix_cache_hits_total"] > 0
    assert figures["generation_tokens_total"] > 0
    assert figures["kv_cache_usage_perc"] == 0


async def test_what_the_readme_asks_is_answered(server: httpx.AsyncClient) -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    bodies = re.findall(r"-d '(\{.*?\})'\n", readme, re.DOTALL)
    plain, held = [(await posted(server, CHAT, json.loads(body)))["choices"][0] for body in bodies]
    assert "Paris" in plain["message"]["content"]
    assert held["finish_reason"] == "stop"
    assert set(json.loads(held["message"]["content"])) == {"name", "capital"}


async def test_a_prompt_alone_generates_nothing(server: httpx.AsyncClient) -> None:
    names = (
        "generation_tokens_total",
        "request_generation_tokens_sum",
        "time_to_first_token_seconds_count",
    )
    before = await settled_metrics(server)
    body = {"prompt": "Some text to score", "echo": True, "max_tokens": 0, "logprobs": 1}
    answer = await posted(server, COMPLETIONS, body)
    assert answer["usage"]["completion_tokens"] == 0
    after = await settled_metrics(server)
    assert [after[name] for name in names] == [before[name] for name in names]
    assert after["prompt_tokens_total"] == before["prompt_tokens_total"] + 4


LATENCIES = (
    "time_to_first_token_seconds",
    "e2e_request_latency_seconds",
    "request_queue_time_seconds",
    "request_prefill_time_seconds",
    "request_decode_time_seconds",
    "request_prompt_tokens",
    "request_generation_tokens",
)


async def test_latencies_of_known_requests(server: httpx.AsyncClient) -> None:
    before = await settled_metrics(server)
    lengths = (2, 3, 5)
    bodies = [
        {"prompt": [100 + length] * 20, "temperature": 0, "max_tokens": length, "ignore_eos": True}
        for length in lengths
    ]
    await asyncio.gather(*(posted(server, COMPLETIONS, body) for body in bodies))
    after = await settled_metrics(server)
    grown = {name: after[name] - before.get(name, 0) for name in after}
    for name in LATENCIES:
        assert grown[f"{name}_count"] == grown[f"{name}_bucket"] == len(lengths)  # `+Inf` is last
    assert grown["inter_token_latency_seconds_count"] == sum(lengths) - len(lengths)
    assert grown["request_time_per_output_token_seconds_count"] == len(lengths)
    assert grown["request_prompt_tokens_sum"] == grown["prompt_tokens_total"] == 60
    assert grown["request_generation_tokens_sum"] == grown["generation_tokens_total"] == 10
    assert grown["request_queue_time_seconds_sum"] > 0
    parts = [grown[f"request_{part}_time_seconds_sum"] for part in ("queue", "prefill", "decode")]
    assert sum(parts) == pytest.approx(grown["e2e_request_latency_seconds_sum"], rel=1e-6)
    between = grown["inter_token_latency_seconds_sum"]
    assert between == pytest.approx(grown["request_decode_time_seconds_sum"], rel=1e-6)


async def test_a_stop_string_in_the_last_allowed_token_is_counted_as_a_stop(
    server: httpx.AsyncClient,
) -> None:
    body = {"prompt": "1, 2, 3, 4, 5, 6, 7, 8,", "temperature": 0, "max_tokens": 6}
    text = (await posted(server, COMPLETIONS, body))["choices"][0]["text"]
    before = await endings_of(server)
    [choice] = (await posted(server, COMPLETIONS, {**body, "stop": [text[1:]]}))["choices"]
    assert choice["finish_reason"] == "stop"
    after = await endings_of(server)
    grown = {reason: after[reason] - before[reason] for reason in after}
    assert grown == {"stop": 1, "length": 0, "abort": 0}


async def endings_of(server: httpx.AsyncClient) -> dict[str, float]:
    """Sequences that have ended, by reason, as the metrics tell it."""
    lines = (await server.get("/metrics")).text.splitlines()
    found = (re.search('finished_reason="([a-z]+)".* ([0-9.e+]+)$', line) for line in lines)
    return {each[1]: float(each[2]) for each in found if each and "_created" not in each.string}


async def test_an_abort_is_counted_and_has_no_latency(
    server: httpx.AsyncClient, real_engine: AsyncEngine
) -> None:
    before = await settled_metrics(server)
    num_aborted = real_engine.stats().num_finished.get("abort", 0)
    body = {"prompt": "Once upon a time", "max_tokens": 900, "ignore_eos": True}
    running = asyncio.create_task(server.post(COMPLETIONS, json=body))
    async with asyncio.timeout(60):
        while not real_engine.stats().num_requests_running:
            await asyncio.sleep(0.005)
    running.cancel()
    after = await settled_metrics(server)
    name = "e2e_request_latency_seconds_count"
    assert after[name] == before[name]
    lines = (await server.get("/metrics")).text.splitlines()
    [line] = [line for line in lines if 'finished_reason="abort"' in line]
    assert float(line.split()[-1]) == num_aborted + 1


async def settled_metrics(server: httpx.AsyncClient) -> dict[str, float]:
    """Figures once nothing runs."""
    async with asyncio.timeout(60):
        while (figures := await metrics_of(server))["num_requests_running"]:
            await asyncio.sleep(0.01)
    return figures


async def metrics_of(server: httpx.AsyncClient) -> dict[str, float]:
    """Figures by name, without prefix and labels."""
    lines = (await server.get("/metrics")).text.splitlines()
    return {
        line.split("{")[0].removeprefix("pagoda:"): float(line.rsplit(" ", 1)[1])
        for line in lines
        if line.startswith("pagoda:")
    }
