"""What a flood by one tenant does to another's conversation, with a floor and without.

    python benchmarks/neighbours.py [--turns 12 --flood 24 --new 128]
    python benchmarks/neighbours.py --flood-prompt 256 --flood-answer 64     steps full of prompts

Bob chats: each turn is what was said so far and something new. First alone, then while Alice always
has so many requests in the server, without a floor for Bob and with one. Told are the time to his
first token, what of his prompts was found in the cache, and how far the block-seconds that `/usage`
tells are from those that looking at blocks many times a second adds up to, in a conversation that
is not timed: looks take the cores that a first token waits for. Prints a few lines, then one JSON
line.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress
from itertools import count
from statistics import median
from typing import Any

import httpx
from serving import ALICE, BOB, prompt_ids, serving

_HOUSE = "the-key-of-the-house"
_NUM_BLOCKS = 1024
_FLOOR = 256
_LOOK_S = 0.02
_BODY = {"temperature": 0, "ignore_eos": True, "model": None}


class Clients:
    """Of one server."""

    def __init__(self, port: int) -> None:
        url, limits = f"http://127.0.0.1:{port}", httpx.Limits(max_connections=None)
        self.alice, self.bob, self.house = (
            httpx.AsyncClient(base_url=url, headers={"x-api-key": key}, limits=limits, timeout=None)
            for key in (ALICE, BOB, _HOUSE)
        )


async def turn(client: httpx.AsyncClient, tokens: list[int]) -> tuple[float, dict[str, Any]]:
    """Seconds to the first token, and the usage."""
    body = {**_BODY, "prompt": tokens, "max_tokens": 16, "stream": True}
    body["stream_options"] = {"include_usage": True}
    started, first, usage = time.perf_counter(), None, {}
    async with client.stream("POST", "/v1/completions", json=body) as answer:
        assert answer.status_code == 200, await answer.aread()
        async for line in answer.aiter_lines():
            if not line.startswith("data: {"):
                continue
            first = first or time.perf_counter() - started
            usage = json.loads(line[6:]).get("usage") or usage
    assert first is not None
    return first, usage


async def conversation(clients: Clients, args: argparse.Namespace, seed: int) -> dict[str, float]:
    """Bob's turns: median seconds to a first token, and the share of his prompts that was found.

    The first turn, which nothing is known of, is left out.
    """
    tokens, times, found, asked = prompt_ids(seed, args.first), [], 0, 0
    for number in range(args.turns + 1):
        first_s, usage = await turn(clients.bob, tokens)
        if number:
            times.append(first_s)
            asked += usage["prompt_tokens"]
            found += usage["prompt_tokens_details"]["cached_tokens"]
        tokens = [*tokens, *prompt_ids(1000 * seed + number, args.new)]
        await asyncio.sleep(args.pause)
    return {"first_token_seconds": median(times), "found": found / asked}


async def flood(clients: Clients, args: argparse.Namespace) -> None:
    """Alice's requests: as soon as one is answered another comes."""
    numbers = count(10**6)

    async def ask() -> None:
        while True:
            prompt = prompt_ids(next(numbers), args.flood_prompt)
            body = {**_BODY, "prompt": prompt, "max_tokens": args.flood_answer}
            await clients.alice.post("/v1/completions", json=body)

    await asyncio.gather(*(ask() for _ in range(args.flood)))


async def usage_of(clients: Clients) -> dict[str, dict[str, float]]:
    answer = await clients.house.get("/usage")
    return {each["tenant"]: each for each in answer.json()["tenants"]}


async def watch(clients: Clients, seen: dict[str, float]) -> None:
    """Adds up the blocks that are held, each time for half of the time to both looks."""
    last, before = time.perf_counter(), await usage_of(clients)
    while True:
        await asyncio.sleep(_LOOK_S)
        now, after = time.perf_counter(), await usage_of(clients)
        for tenant, usage in after.items():
            blocks = usage["held_blocks"] + before.get(tenant, usage)["held_blocks"]
            seen[tenant] = seen.get(tenant, 0.0) + blocks / 2 * (now - last)
        last, before = now, after


@asynccontextmanager
async def beside(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def measure(args: argparse.Namespace, *, has_floor: bool) -> dict[str, Any]:
    """Alone, in the flood, and alone again."""
    flags = ["--api-key", _HOUSE, "--num-gpu-blocks-override", str(_NUM_BLOCKS)]
    flags += ["--max-model-len", "4096", "--max-num-seqs", "16"]
    if has_floor:
        flags += ["--tenant-quota", f"bob:floor={_FLOOR}"]
    async with serving(*flags) as server:
        clients = Clients(server.port)
        before = await conversation(clients, args, 1)
        seen: dict[str, float] = {}
        async with beside(flood(clients, args)):
            await asyncio.sleep(args.settle)
            beside_flood = await conversation(clients, args, 2)
            started = await usage_of(clients)
            async with beside(watch(clients, seen)):
                looked_at = await conversation(clients, args, 4)
            ended = await usage_of(clients)
        await asyncio.sleep(args.settle)
        after = await conversation(clients, args, 3)
    told = {
        tenant: usage["held_block_seconds"] - started.get(tenant, {}).get("held_block_seconds", 0)
        for tenant, usage in ended.items()
    }
    alone_s = min(before["first_token_seconds"], after["first_token_seconds"])
    return {
        "has_floor": has_floor,
        "alone": before,
        "in_flood": beside_flood,
        "looked_at": looked_at,
        "alone_again": after,
        "times": beside_flood["first_token_seconds"] / alone_s,
        "block_seconds": {
            tenant: {"told": told[tenant], "counted": seen[tenant]} for tenant in seen
        },
    }


async def main(args: argparse.Namespace) -> None:
    results = [await measure(args, has_floor=has_floor) for has_floor in (False, True)]
    for each in results:
        print("with a floor:" if each["has_floor"] else "without a floor:")
        for name in ("alone", "in_flood", "looked_at", "alone_again"):
            figures = each[name]
            first_ms, found = figures["first_token_seconds"] * 1e3, figures["found"]
            print(f"  {name:12} first token {first_ms:7.1f} ms, {found:.1%} of prompts found")
        print(f"  {each['times']:.2f} times; block-seconds told / counted:", end="")
        for tenant, both in each["block_seconds"].items():
            print(f" {tenant} {both['told'] / (both['counted'] or 1):.3f}", end="")
        print()
    print(json.dumps(results))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=12)
    parser.add_argument("--flood", type=int, default=24, help="requests of Alice's at a time")
    parser.add_argument("--flood-prompt", type=int, default=16, help="tokens of their prompts")
    parser.add_argument("--flood-answer", type=int, default=300, help="tokens of their answers")
    parser.add_argument("--first", type=int, default=512, help="tokens of the first turn")
    parser.add_argument("--new", type=int, default=128, help="tokens that each turn adds")
    parser.add_argument("--pause", type=float, default=1.0, help="seconds between turns")
    parser.add_argument("--settle", type=float, default=8.0, help="seconds before a measurement")
    asyncio.run(main(parser.parse_args()))
