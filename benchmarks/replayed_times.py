"""How near a replay comes to the times of the server that it replays.

    python benchmarks/replayed_times.py [--requests 80 --rate 1.5]

What a step costs is measured first, by `pagoda bench`. Then a server is asked by clients that come
as a Poisson process, with prompts that share beginnings, and records its trace. That trace is
replayed with the measured cost, by its own settings. Told are the times to the first token and to
the last, as clients saw them and as replayed. Prints two lines, then one JSON line.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from serving import ALICE, prompt_ids, serving

_COMMAND = [sys.executable, "-m", "pagoda"]
_SHARES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
_HEADS = 6


def command(*arguments: str) -> list[dict[str, Any]]:
    """What a command of Pagoda's prints as JSON, line by line."""
    done = subprocess.run([*_COMMAND, *arguments], capture_output=True, text=True, check=True)
    lines = done.stdout.strip().splitlines()
    try:
        return [json.loads(line) for line in lines]
    except json.JSONDecodeError:
        return [json.loads(done.stdout)]


async def ask(client: httpx.AsyncClient, prompt: list[int], num_tokens: int) -> tuple[float, float]:
    """Seconds to the first token and to the last."""
    body = {"prompt": prompt, "max_tokens": num_tokens, "temperature": 0, "ignore_eos": True}
    started, first = time.perf_counter(), None
    async with client.stream("POST", "/v1/completions", json=body | {"stream": True}) as answer:
        assert answer.status_code == 200, await answer.aread()
        async for line in answer.aiter_lines():
            if line.startswith("data: {"):
                first = first or time.perf_counter() - started
    assert first is not None
    return first, time.perf_counter() - started


async def load(port: int, args: argparse.Namespace) -> list[tuple[float, float]]:
    """All requests, each begun when its time comes whatever became of the others."""
    source = random.Random(args.seed)
    heads = [prompt_ids(number, source.randint(64, 384)) for number in range(_HEADS)]
    limits, url = httpx.Limits(max_connections=None), f"http://127.0.0.1:{port}"
    headers = {"x-api-key": ALICE}
    async with httpx.AsyncClient(
        base_url=url, headers=headers, limits=limits, timeout=None
    ) as client:
        await ask(client, prompt_ids(999, 64), 4)
        asked = []
        for number in range(args.requests):
            own = prompt_ids(1000 + number, source.randint(16, 384))
            prompt = source.choice(heads) + own
            asked.append(asyncio.create_task(ask(client, prompt, source.randint(16, 96))))
            await asyncio.sleep(source.expovariate(args.rate))
        return await asyncio.gather(*asked)


async def record(path: Path, args: argparse.Namespace) -> list[tuple[float, float]]:
    flags = ["--record-trace", str(path), "--num-gpu-blocks-override", str(args.num_blocks)]
    async with serving(*flags, "--max-model-len", "1024", "--max-num-seqs", "16") as server:
        return await load(server.port, args)


def percentiles(values: list[float]) -> dict[str, float]:
    return {name: float(np.quantile(values, share)) for name, share in _SHARES.items()}


def main(args: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as folder:
        bench, trace = Path(folder, "bench.jsonl"), Path(folder, "day.jsonl")
        rows = command("bench", "--json", "--repeat", "2")
        bench.write_text("".join(json.dumps(row) + "\n" for row in rows))
        served = asyncio.run(record(trace, args))
        [replayed] = command("replay", str(trace), "--step-cost", str(bench), "--json")
    firsts, lasts = (percentiles([each[place] for each in served]) for place in (0, 1))
    for name, seen, again in (
        ("first token", firsts, replayed["time_to_first_token_s"]),
        ("last token", lasts, replayed["end_to_end_s"]),
    ):
        print(f"{name}: ", end="")
        for share in _SHARES:
            times = again[share] / seen[share]
            print(
                f" {share} {seen[share]:.3f} s, replayed {again[share]:.3f} ({times:.2f})", end=""
            )
        print()
    print(json.dumps({"first_token_s": firsts, "last_token_s": lasts, "replayed": replayed}))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=80)
    parser.add_argument("--rate", type=float, default=1.5, help="requests a second")
    parser.add_argument("--num-blocks", type=int, default=512)
    parser.add_argument("--seed", type=int, default=1)
    main(parser.parse_args())
