"""Bodies of many values: counted as they come, refused before anything is made of them."""

from __future__ import annotations

import asyncio
import json
import tracemalloc
from random import Random
from typing import Any

import pytest
from httpx import AsyncClient
from starlette.types import Message, Receive, Scope, Send

from pagoda.server.turns import Turns
from pagoda.server.value_limit import MAX_MEMBERS, MAX_VALUES, ValueCount, ValueLimit
from server.fake_engine import FIRST_WORD_ID, MAX_MODEL_LEN

MOST = MAX_VALUES + MAX_MODEL_LEN
TEXTS = ["", "plain", "a, [b] {c}: d", '"', "\\", '\\"', '[",', "é😀", "\n\t"]


def random_value(rng: Random, depth: int = 0) -> Any:
    kind = rng.randrange(5 if depth < 4 else 3)
    if kind == 3:
        return [random_value(rng, depth + 1) for _ in range(rng.randrange(1, 4))]
    if kind == 4:
        names = rng.sample(TEXTS, rng.randrange(1, 4))
        return {name: random_value(rng, depth + 1) for name in names}
    return rng.choice([1, -2.5, None, True, *TEXTS])


def num_values(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + sum(map(num_values, inner))


def num_members(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + len(value) + sum(map(num_members, value.values()))
    return 1 + sum(map(num_members, value)) if isinstance(value, list) else 0


@pytest.mark.parametrize("seed", range(50))
def test_what_texts_hold_is_not_counted_however_the_body_is_cut(seed: int) -> None:
    rng = Random(seed)
    value = random_value(rng)
    content = json.dumps(value, ensure_ascii=rng.random() < 0.5).encode()
    count, rest = ValueCount(), content
    while rest:
        size = rng.randrange(1, 6)
        count.add(rest[:size])
        rest = rest[size:]
    assert count.num_values == num_values(value)
    assert count.num_members == num_members(value)


def test_what_is_open_in_one_text_hides_nothing_of_the_next() -> None:
    count = ValueCount()
    for text in (b'"open', b"[1, 2]", b"\\"):
        count.add(text)
        count.begin()
    assert count.num_values == 1 + 3 + 1 + 1, "a text, a list of two, no JSON, and what comes next"
    assert count.num_members == 1


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("body", "limit"),
    [
        (b'{"prompt": [%s1]}' % (b"1," * MOST), f"{MOST:,} values"),
        (b'{"prompt": "x", "junk": [%s[]]}' % (b"[]," * MAX_MEMBERS), f"{MAX_MEMBERS:,} objects"),
        (
            b'{"prompt": "x", %s "y": 1}' % b"".join(b'"%d":1,' % n for n in range(MAX_MEMBERS)),
            f"{MAX_MEMBERS:,} objects",
        ),
    ],
    ids=["values", "lists", "names"],
)
async def test_too_many_are_refused_by_their_number(
    client: AsyncClient, body: bytes, limit: str
) -> None:
    headers = {"content-type": "application/json"}
    for route in ("/v1/completions", "/detokenize"):
        answer = await client.post(route, content=body, headers=headers)
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (400, "too_many_values")
        assert f"at most {limit}" in error["message"]


@pytest.mark.anyio
async def test_a_long_prompt_is_not_too_many_whatever_the_window(client: AsyncClient) -> None:
    for num, code in ((MAX_MODEL_LEN, None), (MOST, "too_many_values")):
        body = {"tokens": [FIRST_WORD_ID] * num}
        answer = await client.post("/detokenize", json=body)
        assert answer.json().get("error", {}).get("code") == code


def test_a_large_batch_of_ids_and_a_text_of_commas_are_not_too_many() -> None:
    count = ValueCount()
    count.add(json.dumps({"prompt": [[40_000] * 2048] * 128}).encode())
    count.add(json.dumps({"prompt": ",[{:" * 10**6}).encode())
    assert count.num_values < MAX_VALUES + 2048
    assert count.num_members < MAX_MEMBERS


@pytest.mark.parametrize("text", [b'"', b'"a', rb"\\", rb"\""])
def test_texts_without_structure_are_not_made_again(text: bytes) -> None:
    part = text * (2**20 // len(text))
    tracemalloc.start()
    try:
        ValueCount().add(part)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 * len(part)


@pytest.mark.anyio
async def test_others_run_while_a_long_part_is_counted() -> None:
    num_turns, is_read = 0, False

    async def read(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal is_read
        await receive()
        is_read = True

    async def receive() -> Message:
        return {"type": "http.request", "body": b" " * 2**20}

    async def send(message: Message) -> None:
        raise AssertionError

    limit = ValueLimit(read, MAX_MODEL_LEN, Turns())
    reading = asyncio.create_task(limit({"type": "http"}, receive, send))
    while not is_read:
        await asyncio.sleep(0)
        num_turns += 1
    await reading
    assert num_turns >= 16
