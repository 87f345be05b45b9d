"""The server over layers of the default model while many clients come, go and leave early."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest

from pagoda.engine.async_engine import AsyncEngine
from pagoda.engine.build import Model, connect
from pagoda.engine.options import EngineOptions
from pagoda.server.options import ServerOptions
from server.live import live_server
from server.sse import completion_text, events_of

pytestmark = [pytest.mark.anyio, pytest.mark.model]
URL = "/v1/completions"
QUEUE = 32
NUM_ABORTS = 60
NUM_CLIENTS = 150
"""Both are more than there is room for: the queue, and sixteen that run."""
STORIES = ["Once upon a time", "def add(a, b):", "The sun rises in", "1, 2, 3, 4,"]


@pytest.fixture(scope="module")
def engine(shallow_model: Model) -> AsyncEngine:
    options = EngineOptions(kv_cache_memory_bytes=2**25, max_num_seqs=16)
    return AsyncEngine(connect(replace(shallow_model, max_model_len=512), options))


@pytest.fixture(scope="module")
def url(engine: AsyncEngine) -> Iterator[str]:
    with live_server(engine, ServerOptions(max_num_queued_reqs=QUEUE)) as url:
        yield url


@pytest.fixture
async def client(url: str) -> AsyncIterator[httpx.AsyncClient]:
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=300, limits=limits) as client:
        yield client


def body_of(number: int, max_tokens: int = 24) -> dict[str, Any]:
    prompt = f"{STORIES[number % len(STORIES)]}"
    return {"prompt": prompt, "temperature": 0, "max_tokens": max_tokens, "ignore_eos": True}


async def texts_alone(client: httpx.AsyncClient, count: int) -> list[str]:
    answers = [await client.post(URL, json=body_of(number)) for number in range(count)]
    return [answer.json()["choices"][0]["text"] for answer in answers]


async def leave_after(client: httpx.AsyncClient, number: int, num_events: int) -> None:
    """Ask for a long answer and close the connection after a few events of it, or before any."""
    body = {
        **body_of(number, max_tokens=400),
        "prompt": f"{number}: {'word ' * 8}",
        "stream": True,
    }
    if num_events == 0:
        asking = asyncio.create_task(client.post(URL, json=body))
        await asyncio.sleep(0.002 * (number % 50))
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        return
    async with client.stream("POST", URL, json=body) as response:
        if response.status_code != 200:  # the queue is full
            return
        async for line in response.aiter_lines():
            num_events -= line.startswith("data: ")
            if num_events == 0:
                return


async def test_who_leaves_gives_its_blocks_back_and_disturbs_nobody(
    client: httpx.AsyncClient, engine: AsyncEngine
) -> None:
    alone = await texts_alone(client, 4)
    staying = [client.post(URL, json=body_of(number)) for number in range(4)]
    leaving = [leave_after(client, number, number % 4) for number in range(NUM_ABORTS)]
    answers, _ = await asyncio.gather(asyncio.gather(*staying), asyncio.gather(*leaving))
    assert [answer.json()["choices"][0]["text"] for answer in answers] == alone
    async with asyncio.timeout(1):
        while True:
            stats = engine.stats()
            if stats.num_requests_running == stats.num_requests_waiting == 0:
                break
            await asyncio.sleep(0.01)
    assert stats.kv_cache_usage == 0
    assert stats.num_finished["abort"] > NUM_ABORTS / 4


async def ask(client: httpx.AsyncClient, number: int) -> tuple[int, str]:
    """The status and the text; every other client streams."""
    body = {**body_of(number, max_tokens=8), "stream": bool(number % 2)}
    response = await client.post(URL, json=body)
    if response.status_code != 200:
        assert response.headers["retry-after"]
        return response.status_code, response.json()["error"]["code"]
    if body["stream"]:
        return 200, completion_text(events_of(response.text))
    return 200, response.json()["choices"][0]["text"]


async def test_a_flood_is_answered_or_told_to_come_back(client: httpx.AsyncClient) -> None:
    alone = [
        (await client.post(URL, json=body_of(number, max_tokens=8))).json()["choices"][0]["text"]
        for number in range(len(STORIES))
    ]
    answers = await asyncio.gather(*(ask(client, number) for number in range(NUM_CLIENTS)))
    statuses = Counter(status for status, _ in answers)
    assert set(statuses) == {200, 503}
    assert statuses[200] >= QUEUE
    for number, (status, text) in enumerate(answers):
        assert text == (alone[number % len(STORIES)] if status == 200 else "server_overloaded")
    assert (await client.get("/health")).status_code == 200
    assert (await client.get("/load")).json() == {"server_load": 0}
