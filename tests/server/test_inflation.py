"""Compressed bodies: read within the limit, or refused."""

from __future__ import annotations

import gzip
import json
import tracemalloc
import zlib
from collections.abc import AsyncIterator

import httpx
import pytest

from pagoda.server.app import create_app
from pagoda.server.options import ServerOptions
from server.conftest import client_of
from server.fake_engine import FakeEngine

pytestmark = pytest.mark.anyio
BODY = json.dumps({"prompt": "compressed", "max_tokens": 1}).encode()
LIMIT = 2**20


async def post(engine: FakeEngine, encoding: str, *parts: bytes) -> httpx.Response:
    async def body() -> AsyncIterator[bytes]:
        for part in parts:
            yield part

    app = create_app(engine, ServerOptions(max_body_bytes=LIMIT))
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
    encoding: str, parts: list[bytes], engine: FakeEngine
) -> None:
    assert (await post(engine, encoding, *parts)).status_code == 200
    assert [asked["prompt"] for asked in engine.asked] == ["compressed"]


async def test_a_body_of_several_parts_is_whole(engine: FakeEngine) -> None:
    padded = BODY[:-1] + b" " * (LIMIT - len(BODY)) + b"}"
    assert (await post(engine, "gzip", gzip.compress(padded))).status_code == 200
    too_large = await post(engine, "gzip", gzip.compress(padded + b" "))
    assert too_large.status_code == 413
    assert "1,048,576 bytes once it is inflated" in too_large.json()["error"]["message"]


async def test_a_bomb_is_refused_as_it_is_read(engine: FakeEngine) -> None:
    bomb = gzip.compress(b" " * (512 * LIMIT // 8), 1)
    assert len(bomb) < LIMIT
    tracemalloc.start()
    try:
        response = await post(engine, "gzip", bomb)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert response.status_code == 413
    assert peak < 16 * LIMIT
    assert engine.asked == []


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
    body: bytes, reason: str, engine: FakeEngine
) -> None:
    response = await post(engine, "gzip", body)
    assert response.status_code == 400
    assert reason in response.json()["error"]["message"]


@pytest.mark.parametrize("encoding", ["br", "zstd", "gzip, gzip", "", "x"])
async def test_another_encoding_is_refused(encoding: str, engine: FakeEngine) -> None:
    response = await post(engine, encoding, BODY)
    assert response.status_code == 415
    assert response.headers["accept-encoding"] == "gzip, deflate"
    assert response.json()["error"]["code"] == "unsupported_content_encoding"
