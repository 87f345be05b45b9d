"""`pagoda serve` as a process: told to stop while it is busy, and gone on from in another."""

from __future__ import annotations

import asyncio
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from checkpoints import Case, build_model
from gguf_files import write_gguf
from pagoda.cli.main import run
from pagoda.engine.async_engine import AsyncEngine
from pagoda.engine.options import EngineOptions
from server.live import live_server
from server.sse import completion_text, events_of

pytestmark = pytest.mark.anyio
FLAGS = [
    "--port",
    "0",
    "--kv-cache-memory-bytes",
    "16MiB",
    "--max-model-len",
    "512",
    "--threads",
    "1",
]
CONFIG = {"max_position_embeddings": 512, "num_hidden_layers": 2}
NUM_CLIENTS = 4
BODY = {"temperature": 0, "max_tokens": 300, "ignore_eos": True, "stream": True}
PROMPT = "Once upon a time there was a traveller who " * 6


class Server(NamedTuple):
    """A process, and its address as it tells it."""

    process: subprocess.Popen[str]
    url: str


@asynccontextmanager
async def serving(*arguments: str) -> AsyncIterator[Server]:
    command = [sys.executable, "-m", "pagoda", "serve", *arguments, *FLAGS]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert server.stderr is not None
    try:
        url = None
        while url is None:
            line = await asyncio.to_thread(server.stderr.readline)
            assert line, "the server ended before it served"
            url = re.search(r"http://\S+", line)
        yield Server(server, url.group())
    finally:
        server.kill()
        server.wait()


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = str(tmp_path_factory.mktemp("key") / "key")
    assert run(["tiers", "new-key", file]) == 0
    return file


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A file of a Llama of two small layers over bytes."""
    place = tmp_path_factory.mktemp("model") / "tiny.gguf"
    return str(write_gguf(place, build_model(Case("llama", CONFIG))))


@pytest.fixture(scope="module")
async def first(model: str, key: str, anyio_backend: str) -> AsyncIterator[Server]:
    """One process for all tests: to start takes it some seconds."""
    async with serving(model, "--kv-tier-key-file", key) as server:
        yield server


async def test_a_session_of_one_process_goes_on_in_another(
    first: Server, model: str, key: str, tmp_path: Path
) -> None:
    """This process is the other one, for a server of its own."""
    options = EngineOptions(
        model, kv_cache_memory_bytes=2**24, max_model_len=512, threads=1, kv_tier_key_file=key
    )
    with live_server(AsyncEngine.load(options)) as second:
        tokens = await gone_on(first.url, "trip", PROMPT)
        expected = await ask_at(first.url, {"prompt": tokens, "max_tokens": 8})
        await carry("trip", first.url, second, "my trip", tmp_path / "there.session")
        assert await asked_from_cache(second, tokens) == expected
        tokens = await gone_on(second, "my trip", tokens)  # by more than a block
        expected = await ask_at(second, {"prompt": tokens, "max_tokens": 8})
        await carry("my trip", second, first.url, "back", tmp_path / "back.session")
        assert await asked_from_cache(first.url, tokens) == expected


async def gone_on(url: str, session: str, prompt: str | list[int]) -> list[int]:
    """All tokens of a session after one more turn."""
    body = {"prompt": prompt, "session_id": session, "max_tokens": 30}
    return [token for part in await ask_at(url, body) for token in part]


async def asked_from_cache(url: str, tokens: list[int]) -> list[list[int]]:
    """What a server that has a session's blocks goes on with; the last token of an answer was
    never put through the model."""
    body = {"prompt": tokens, "max_tokens": 8}
    return await ask_at(url, body, num_cached=(len(tokens) - 1) // 16 * 16)


async def carry(name: str, url: str, to_url: str, new_name: str, file: Path) -> None:
    for command in (
        ["session", "export", name, str(file), "--url", url],
        ["session", "import", str(file), "--url", to_url, "--as", new_name],
    ):
        assert await asyncio.to_thread(run, command) == 0


async def ask_at(url: str, body: dict[str, Any], num_cached: int | None = None) -> list[list[int]]:
    """The tokens of the prompt and of the answer; `num_cached` of them were in the cache."""
    asked = {**body, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
    async with httpx.AsyncClient(base_url=url, timeout=120) as client:
        answer = (await client.post("/v1/completions", json=asked)).json()
    found = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert num_cached in (None, found)
    [choice] = answer["choices"]
    return [choice["prompt_token_ids"], choice["token_ids"]]


async def test_all_that_runs_finishes_and_the_rest_is_told_503(first: Server) -> None:
    """Last: it ends the server."""
    async with httpx.AsyncClient(base_url=first.url, timeout=120) as client:

        async def ask(number: int, seen: asyncio.Event) -> str:
            body = {**BODY, "prompt": f"Chapter {number}. Once upon a time"}
            async with client.stream("POST", "/v1/completions", json=body) as response:
                text = ""
                async for part in response.aiter_text():
                    text += part
                    seen.set()
            return completion_text(events_of(text))

        async def ask_all(seen: list[asyncio.Event]) -> list[str]:
            return await asyncio.gather(*(ask(*pair) for pair in enumerate(seen)))

        undisturbed = await ask_all([asyncio.Event() for _ in range(NUM_CLIENTS)])
        assert min(map(len, undisturbed)) > 100
        seen = [asyncio.Event() for _ in range(NUM_CLIENTS)]
        asking = asyncio.create_task(ask_all(seen))
        await asyncio.gather(*(event.wait() for event in seen))
        first.process.send_signal(signal.SIGTERM)
        statuses = []
        while not statuses or statuses[-1] == 200:
            late = {**BODY, "prompt": "x", "max_tokens": 1}
            statuses.append((await client.post("/v1/completions", json=late)).status_code)
        assert statuses[-1] == 503
        assert await asking == undisturbed
        assert await asyncio.to_thread(first.process.wait, 30) == 0
