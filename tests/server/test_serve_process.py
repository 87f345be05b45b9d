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
from typing import Any

import httpx
import pytest

from pagoda.cli.main import run
from server.sse import completion_text, events_of

pytestmark = [pytest.mark.anyio, pytest.mark.model]
COMMAND = "import sys; from pagoda.cli.main import main; main()"
FLAGS = [
    "--port",
    "0",
    "--kv-cache-memory-bytes",
    "256MiB",
    "--max-model-len",
    "512",
    "--threads",
    "1",
]
NUM_CLIENTS = 4
BODY = {"temperature": 0, "max_tokens": 40, "ignore_eos": True, "stream": True}
PROMPT = "Once upon a time there was a traveller who " * 6


@asynccontextmanager
async def serving(*flags: str) -> AsyncIterator[tuple[subprocess.Popen[str], str]]:
    """The process, and its address as it tells it."""
    server = subprocess.Popen(
        [sys.executable, "-c", COMMAND, "serve", *FLAGS, *flags], stderr=subprocess.PIPE, text=True
    )
    assert server.stderr is not None
    try:
        url = None
        while url is None:
            line = await asyncio.to_thread(server.stderr.readline)
            assert line, "the server ended before it served"
            url = re.search(r"http://\S+", line)
        yield server, url.group()
    finally:
        server.kill()
        server.wait()


async def test_all_that_runs_finishes_and_the_rest_is_told_503() -> None:
    async with serving() as (server, url), httpx.AsyncClient(base_url=url, timeout=120) as client:

        async def ask(number: int, seen: asyncio.Event) -> str:
            body = {**BODY, "prompt": f"Chapter {number}. Once upon a time"}
            async with client.stream("POST", "/v1/completions", json=body) as response:
                text = ""
                async for part in response.aiter_text():
                    text += part
                    seen.set()
            return completion_text(events_of(text))

        alone = [await ask(number, asyncio.Event()) for number in range(NUM_CLIENTS)]
        seen = [asyncio.Event() for _ in range(NUM_CLIENTS)]
        asking = [asyncio.create_task(ask(*pair)) for pair in enumerate(seen)]
        await asyncio.gather(*(event.wait() for event in seen))
        server.send_signal(signal.SIGTERM)
        statuses = []
        while not statuses or statuses[-1] == 200:
            late = {**BODY, "prompt": "x", "max_tokens": 1}
            statuses.append((await client.post("/v1/completions", json=late)).status_code)
        assert statuses[-1] == 503
        assert await asyncio.gather(*asking) == alone
        assert await asyncio.to_thread(server.wait, 30) == 0


async def test_a_session_of_one_process_goes_on_in_another(tmp_path: Path) -> None:
    key, file = str(tmp_path / "key"), str(tmp_path / "trip.session")
    assert run(["tiers", "new-key", key]) == 0
    flags = ["--kv-tier-key-file", key]
    async with serving(*flags) as (_, first), serving(*flags) as (_, second):
        body: dict[str, Any] = {"prompt": PROMPT, "session_id": "trip", "max_tokens": 30}
        tokens = [token for part in await ask_at(first, body) for token in part]
        body = {"prompt": tokens, "max_tokens": 8}
        [_, expected] = await ask_at(first, body)
        export = ["session", "export", "trip", file, "--url", first]
        assert await asyncio.to_thread(run, export) == 0
        bring = ["session", "import", file, "--url", second, "--as", "my trip"]
        assert await asyncio.to_thread(run, bring) == 0
        # The last token of an answer is never put through the model.
        [_, found] = await ask_at(second, body, num_cached=(len(tokens) - 1) // 16 * 16)
        assert found == expected


async def ask_at(url: str, body: dict[str, Any], num_cached: int | None = None) -> list[list[int]]:
    """The tokens of the prompt and of the answer; `num_cached` of them were in the cache."""
    asked = {**body, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
    async with httpx.AsyncClient(base_url=url, timeout=120) as client:
        answer = (await client.post("/v1/completions", json=asked)).json()
    found = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert num_cached in (None, found)
    [choice] = answer["choices"]
    return [choice["prompt_token_ids"], choice["token_ids"]]
