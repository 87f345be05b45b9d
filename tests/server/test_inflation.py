"""Compressed bodies: read within the limit, or refused."""

from __future__ import annotations

import asyncio
import gzip
import json
import tracemalloc
import zlib
from collections.abc import AsyncIterator
from itertools import pairwise

import httpx
import pytest
from starlette.types import Message, Receive, Scope, Send

from pagoda.server.inflation import Inflation
from pagoda.server.options import ServerOptions
from pagoda.server.turns import Turns
from server.conftest import MakeApp, client_of
from server.fake_engine import FakeEngine

pytestmark = pytest.mark.anyio
BODY = json.dumps({"prompt": "compressed", "max_tokens": 1}).encode()
LIMIT = 2**20
OPTIONS = ServerOptions(max_body_bytes=LIMIT)


async def post(make_app: MakeApp, encoding: str, *parts: bytes) -> httpx.Response:
    async def body() -> AsyncIterator[bytes]:
        for part in parts:
            yield part

    app = make_app(OPTIONS)
    headers = {"Content-Type": "application/json", "Content-Encoding": encoding}
    async with client_of(app) as client:
        return await client.post("/v1/completions", content=body(), headers=headers)


ZIPPED = gzip.compress(BODY, mtime=0)


@pytest.mark.parametrize(
    ("encoding", "parts"),
    [
        ("gzip", [ZIPPED]),
        ("x-gzip", [ZIPPED]),
        ("GZIP", [ZIPPED[:20], ZIPPED[20:]]),
        ("gzip", [bytes([byte]) for byte in ZIPPED]),
        ("gzip", [gzip.compress(BODY[:9]) + gzip.compress(BODY[9:]), b""]),
        ("deflate", [zlib.compress(BODY)]),
        ("identity", [BODY]),
    ],
)
async def test_a_compressed_body_is_read(
    encoding: str, parts: list[bytes], engine: FakeEngine, make_app: MakeApp
) -> None:
    assert (await post(make_app, encoding, *parts)).status_code == 200
    assert [asked["prompt"] for asked in engine.asked] == ["compressed"]


async def test_a_body_of_several_parts_is_whole(engine: FakeEngine, make_app: MakeApp) -> None:
    padded = BODY[:-1] + b" " * (LIMIT - len(BODY)) + b"}"
    assert (await post(make_app, "gzip", gzip.compress(padded))).status_code == 200
    too_large = await post(make_app, "gzip", gzip.compress(padded + b" "))
    assert too_large.status_code == 413
    assert "1,048,576 bytes once it is inflated" in too_large.json()["error"]["message"]


async def test_a_bomb_is_refused_as_it_is_read(engine: FakeEngine, make_app: MakeApp) -> None:
    bomb = gzip.compress(b" " * (512 * LIMIT // 8), 1)
    assert len(bomb) < LIMIT
    tracemalloc.start()
    try:
        response = await post(make_app, "gzip", bomb)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert response.status_code == 413
    assert peak < 16 * LIMIT
    assert engine.asked == []


async def test_others_run_between_two_pieces_of_any_bodies() -> None:
    num_pieces, num_in_turns = 0, [0]
    bomb = gzip.compress(b" " * LIMIT)

    async def read(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal num_pieces
        is_complete = False
        while not is_complete:
            message = await receive()
            num_pieces += 1
            is_complete = not message["more_body"]

    async def receive() -> Message:
        return {"type": "http.request", "body": bomb}

    async def send(message: Message) -> None:
        raise AssertionError

    app = Inflation(read, LIMIT, Turns())
    scope: Scope = {
        "type": "http",
        "path": "/",
        "headers": [(b"content-encoding", b"gzip")],
    }
    reading = [asyncio.create_task(app(dict(scope), receive, send)) for _ in range(3)]
    while not all(task.done() for task in reading):
        await asyncio.sleep(0)
        num_in_turns.append(num_pieces)
    await asyncio.gather(*reading)
    assert num_pieces > 3 * 16
    assert max(after - before for before, after in pairwise(num_in_turns)) == 1


async def test_so_many_gzip_members_may_follow_each_other(
    engine: FakeEngine, make_app: MakeApp
) -> None:
    empty = gzip.compress(b"")
    assert (await post(make_app, "gzip", ZIPPED + 127 * empty)).status_code == 200
    refused = await post(make_app, "gzip", ZIPPED + 128 * empty)
    assert refused.status_code == 400
    assert "at most 128 gzip members" in refused.json()["error"]["message"]


@pytest.mark.parametrize("content", [b"x", gzip.compress(b" " * (LIMIT + 1))])
async def test_what_is_refused_is_read_to_its_end(
    content: bytes, engine: FakeEngine, make_app: MakeApp
) -> None:
    """Else the connection would be closed before the client hears of it."""
    parts = [content, b"x" * 1000, b"x"]
    read: list[bytes] = []

    async def body() -> AsyncIterator[bytes]:
        for part in parts:
            read.append(part)
            yield part

    headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    async with client_of(make_app(OPTIONS)) as client:
        refused = await client.post("/v1/completions", content=body(), headers=headers)
    assert refused.is_client_error
    assert read == parts


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (BODY, "neither gzip nor deflate"),
        (ZIPPED[:-9], "ends too early"),
        (b"", "ends too early"),
        (ZIPPED + b"rest", "neither gzip nor deflate"),
        (ZIPPED[:-8] + bytes(8), "neither gzip nor deflate"),
    ],
    ids=["plain", "cut", "nothing", "more behind", "another sum"],
)
async def test_what_is_not_compressed_is_refused(
    body: bytes, reason: str, engine: FakeEngine, make_app: MakeApp
) -> None:
    response = await post(make_app, "gzip", body)
    assert response.status_code == 400
    assert reason in response.json()["error"]["message"]


@pytest.mark.parametrize("encoding", ["br", "zstd", "gzip, gzip", "", "x"])
async def test_another_encoding_is_refused(
    encoding: str, engine: FakeEngine, make_app: MakeApp
) -> None:
    response = await post(make_app, encoding, BODY)
    assert response.status_code == 415
    assert response.headers["accept-encoding"] == "gzip, deflate"
    assert response.json()["error"]["code"] == "unsupported_content_encoding"
