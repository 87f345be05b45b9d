"""A client that goes away takes its request with it; seen over a real socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import httpx
import pytest
import uvicorn

from pagoda.server.app import create_app
from pagoda.server.listener import bind, url_of
from server.fake_engine import FakeEngine

pytestmark = pytest.mark.anyio


@pytest.fixture
async def url(engine: FakeEngine) -> AsyncIterator[str]:
    """A running server."""
    engine.hold = asyncio.Event()
    with bind("127.0.0.1", 0) as listener:
        config = uvicorn.Config(create_app(engine), log_config=None)
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        async with asyncio.timeout(20):
            while not server.started:
                await asyncio.sleep(0.005)
        yield url_of(listener)
        server.should_exit = True
        await serving


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.005)


async def test_leaving_a_stream_aborts_it(url: str, engine: FakeEngine) -> None:
    body = {"prompt": ["a", "b"], "stream": True}
    async with (
        httpx.AsyncClient(base_url=url) as client,
        client.stream("POST", "/v1/completions", json=body) as response,
    ):
        lines = response.aiter_lines()
        assert (await anext(lines)).startswith("data: ")
    await until(lambda: len(engine.aborted) == 2)
    assert sorted(engine.aborted) == sorted(engine.started)


@pytest.mark.parametrize("stream", [True, False])
async def test_leaving_a_response_aborts_it(stream: bool, url: str, engine: FakeEngine) -> None:
    body = {"input": "a", "stream": stream}
    async with httpx.AsyncClient(base_url=url) as client:
        asking = asyncio.create_task(client.post("/v1/responses", json=body))
        await until(lambda: bool(engine.started))
        asking.cancel()
    await until(lambda: engine.aborted == engine.started)


@pytest.mark.parametrize("body", [{"stream": False}, {"stream": False, "n": 2}])
async def test_leaving_a_whole_answer_aborts_it(
    body: dict[str, object], url: str, engine: FakeEngine
) -> None:
    async with httpx.AsyncClient(base_url=url) as client:
        asking = asyncio.create_task(
            client.post("/v1/completions", json={"prompt": ["a", "b"], **body})
        )
        await until(lambda: len(engine.started) == 2)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
    await until(lambda: len(engine.aborted) == 2)
    assert sorted(engine.aborted) == sorted(engine.started)


async def test_a_finished_stream_aborts_nothing(url: str, engine: FakeEngine) -> None:
    assert engine.hold is not None
    engine.hold.set()
    async with httpx.AsyncClient(base_url=url) as client:
        response = await client.post("/v1/completions", json={"prompt": "a", "stream": True})
    assert response.text.endswith("data: [DONE]\n\n")
    assert engine.aborted == []
