"""A conversation that is only counted may be longer than one that is answered, as a text may."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from checkpoints import CASES, write_checkpoint
from pagoda.engine.async_engine import AsyncEngine
from pagoda.engine.options import EngineOptions
from server.live import live_server

MAX_MODEL_LEN = 64
AROUND = len("(user\n)\n(assistant\n")
"""Tokens that the template writes around a message: one a byte, and one for each special token."""
MOST_TOLD = 8 * MAX_MODEL_LEN
COUNTS: dict[str, tuple[str, str]] = {
    "/tokenize": ("/v1/chat/completions", "count"),
    "/v1/messages/count_tokens": ("/v1/messages", "input_tokens"),
    "/v1/responses/input_tokens": ("/v1/responses", "input_tokens"),
}
"""By the route that counts: the route that answers, and the count's field."""


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    checkpoint = write_checkpoint(tmp_path_factory.mktemp("tiny"), CASES["llama-gqa"])
    options = EngineOptions(
        str(checkpoint), max_model_len=MAX_MODEL_LEN, num_gpu_blocks_override=40, threads=1
    )
    with live_server(AsyncEngine.load(options)) as url:
        yield httpx.Client(base_url=url, timeout=60)


def body_of(url: str, text: str) -> dict[str, Any]:
    messages = [{"role": "user", "content": text}]
    if url.startswith("/v1/responses"):
        return {"input": messages}
    return {"messages": messages} | ({"max_tokens": 1} if url == "/v1/messages" else {})


@pytest.mark.parametrize("url", COUNTS)
def test_up_to_eight_times_the_models_length_is_counted(url: str, client: httpx.Client) -> None:
    answering, field = COUNTS[url]
    longest = "x" * (MOST_TOLD - AROUND)
    for text in ("hi", "x" * MAX_MODEL_LEN, longest):
        counted = client.post(url, json=body_of(url, text))
        assert counted.status_code == 200, counted.text
        assert counted.json()[field] == len(text) + AROUND
    too_long = client.post(url, json=body_of(url, longest + "x"))
    assert too_long.status_code == 400
    message = too_long.json()["error"]["message"]
    assert f"='{MOST_TOLD + 1} tokens': at most {MOST_TOLD} tokens, 8 times" in message
    assert message.startswith("input=" if "input" in body_of(url, "") else "messages=")
    answer = client.post(answering, json=body_of(answering, "x" * MAX_MODEL_LEN))
    assert answer.status_code == 400, "what is answered is no longer than the model takes"
