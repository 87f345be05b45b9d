"""Stage situations on a live server, and see what `pagoda doctor` says of each.

    pagoda serve --num-gpu-blocks-override 512 --max-model-len 2048 --port 8000 &
    python benchmarks/doctor.py http://127.0.0.1:8000 [--situation NAME ...] [--seconds 20]

The server is Pagoda's or vLLM's, with a cache of some 8,000 tokens: `thrash` needs one that
answers can outgrow. Clients ask in a closed loop. `stable` is `prefix` mended, and should come out
healthy. `--record DIR` keeps every scrape. Prints a line for each situation, then one JSON line.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx

_SETTLE_S = 4.0
"""Clients ask for so long before the first scrape."""
_FIRST_ID, _LAST_ID = 100, 47_999
_WORDS = (
    "You help people who rent boats on the lakes. Answer from the rules below and be brief. "
    "Rule {n}: a boat of class {n} may stay out for {n} hours, wants {n} life vests on board, "
    "and is handed back at pier {n} with a full tank. "
)


@dataclass(frozen=True, slots=True)
class Situation:
    """What each of `num_clients` asks, again and again."""

    num_clients: int
    route: str
    body: Callable[[random.Random], dict[str, Any]]


def _ids(source: random.Random, count: int) -> list[int]:
    return [source.randrange(_FIRST_ID, _LAST_ID) for _ in range(count)]


def _completion(
    least: int, most: int, output_tokens: int
) -> Callable[[random.Random], dict[str, Any]]:
    """A completion of a prompt of random tokens, of any length between two."""
    return lambda source: {
        "prompt": _ids(source, source.randint(least, most)),
        "max_tokens": output_tokens,
        "ignore_eos": True,
        "temperature": 0,
    }


def _chat(system: Callable[[str, str], str]) -> Callable[[random.Random], dict[str, Any]]:
    """A chat behind a long system prompt; `system` puts a time and the rules together."""
    rules = "".join(_WORDS.format(n=number) for number in range(1, 11))

    def body(source: random.Random) -> dict[str, Any]:
        question = f"May I take boat {source.randrange(10**6)} out at {source.randrange(24)}?"
        return {
            "messages": [
                {"role": "system", "content": system(datetime.now().isoformat(), rules)},
                {"role": "user", "content": question},
            ],
            "max_tokens": 16,
            "temperature": 0,
        }

    return body


SITUATIONS = {
    "prefill": Situation(4, "/v1/completions", _completion(150, 1400, 4)),
    "decode": Situation(8, "/v1/completions", _completion(16, 64, 256)),
    "thrash": Situation(48, "/v1/completions", _completion(24, 72, 400)),
    "prefix": Situation(
        4, "/v1/chat/completions", _chat(lambda now, rules: f"The time is {now}. {rules}")
    ),
    "stable": Situation(
        4, "/v1/chat/completions", _chat(lambda now, rules: f"{rules} The time is {now}.")
    ),
}


async def _client(
    http: httpx.AsyncClient, model: str, situation: Situation, source: random.Random
) -> None:
    while True:
        body = {"model": model, **situation.body(source)}
        answer = await http.post(situation.route, json=body)
        answer.raise_for_status()


async def under(
    url: str, name: str, seed: int, watch: Callable[[httpx.AsyncClient], Awaitable[Any]]
) -> Any:
    """What `watch` returns, run while the clients of a situation ask."""
    situation = SITUATIONS[name]
    async with httpx.AsyncClient(base_url=url, timeout=300, limits=httpx.Limits()) as http:
        model = (await http.get("/v1/models")).json()["data"][0]["id"]
        clients = [
            asyncio.create_task(_client(http, model, situation, random.Random(f"{seed}/{number}")))
            for number in range(situation.num_clients)
        ]
        watching = asyncio.create_task(_settled(http, watch))
        try:
            await asyncio.wait([watching, *clients], return_when=asyncio.FIRST_COMPLETED)
            for task in clients:
                if task.done():
                    task.result()
            return await watching
        finally:
            for task in (watching, *clients):
                task.cancel()
            await asyncio.gather(watching, *clients, return_exceptions=True)


async def _settled(
    http: httpx.AsyncClient, watch: Callable[[httpx.AsyncClient], Awaitable[Any]]
) -> Any:
    await asyncio.sleep(_SETTLE_S)
    return await watch(http)


async def _record(http: httpx.AsyncClient, seconds: float, interval: float) -> list[dict[str, Any]]:
    scrapes = []
    start = time.monotonic()
    while True:
        text = (await http.get("/metrics")).text
        scrapes.append({"time_s": time.monotonic() - start, "text": text})
        if scrapes[-1]["time_s"] >= seconds:
            return scrapes
        await asyncio.sleep(interval)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--situation", nargs="+", default=list(SITUATIONS), choices=SITUATIONS)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--record", type=Path)
    args = parser.parse_args()
    for name in args.situation:
        scrapes = asyncio.run(
            under(args.url, name, args.seed, lambda http: _record(http, args.seconds, 1.0))
        )
        if args.record:
            args.record.mkdir(parents=True, exist_ok=True)
            (args.record / f"{name}.json").write_text(json.dumps(scrapes))
        print(name, len(scrapes), file=sys.stderr)
        time.sleep(3)


if __name__ == "__main__":
    main()
