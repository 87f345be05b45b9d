"""How near a replay comes to the times of the server that it replays.

    python benchmarks/replayed_times.py [usual light heavy long]
    python benchmarks/replayed_times.py usual --step-cost bench.jsonl

What a step costs is measured first, by `pagoda bench`, if it is not given. Then, for each shape of
load, a server is asked by clients that come as a Poisson process, with prompts that share
beginnings, and records its trace. That trace is replayed with the measured cost, by its own
settings. Told are the times to the first token and to the last, as clients saw them and as
replayed, and how many processes wanted the machine's cores. Prints two lines a shape, then one JSON
line.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from serving import ALICE, prompt_ids, serving

_COMMAND = [sys.executable, "-m", "pagoda"]
_SHARES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
_HEADS = 6


@dataclass(frozen=True, slots=True)
class Shape:
    """A load."""

    rate: float
    """Requests a second."""
    num_requests: int
    own: int
    """Tokens of a prompt behind its beginning, at most."""
    answer: int
    """Tokens of an answer, at most."""


SHAPES = {
    "usual": Shape(1.5, 80, 384, 96),
    "light": Shape(0.5, 40, 384, 96),
    "heavy": Shape(2.5, 100, 384, 96),
    "long": Shape(0.5, 40, 1536, 48),
}


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


async def load(port: int, shape: Shape, seed: int) -> list[tuple[float, float]]:
    """All requests, each begun when its time comes whatever became of the others. Before them one
    that finds the server cold: it is in the trace too."""
    source = random.Random(seed)
    heads = [prompt_ids(number, source.randint(64, 384)) for number in range(_HEADS)]
    limits, url = httpx.Limits(max_connections=None), f"http://127.0.0.1:{port}"
    headers = {"x-api-key": ALICE}
    async with httpx.AsyncClient(
        base_url=url, headers=headers, limits=limits, timeout=None
    ) as client:
        cold = await ask(client, prompt_ids(999, 64), 4)
        asked = []
        for number in range(shape.num_requests):
            own = prompt_ids(1000 + number, source.randint(16, shape.own))
            prompt = source.choice(heads) + own
            asked.append(asyncio.create_task(ask(client, prompt, source.randint(16, shape.answer))))
            await asyncio.sleep(source.expovariate(shape.rate))
        return [cold, *await asyncio.gather(*asked)]


async def record(path: Path, shape: Shape, args: argparse.Namespace) -> list[tuple[float, float]]:
    flags = ["--record-trace", str(path), "--num-gpu-blocks-override", str(args.num_blocks)]
    async with serving(*flags, "--max-model-len", "2048", "--max-num-seqs", "16") as server:
        return await load(server.port, shape, args.seed)


def measured_cost(folder: Path) -> Path:
    """What `pagoda bench` prints, in a file."""
    path = folder / "bench.jsonl"
    rows = command("bench", "--json", "--repeat", "2")
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def measure(name: str, cost: Path, folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    """One shape of load, served and replayed; prints its two lines."""
    trace = folder / f"{name}.jsonl"
    served = asyncio.run(record(trace, SHAPES[name], args))
    [replayed] = command("replay", str(trace), "--step-cost", str(cost), "--json", "--no-optimum")
    firsts, lasts = (percentiles([each[place] for each in served]) for place in (0, 1))
    for what, seen, again in (
        ("first token", firsts, replayed["time_to_first_token_s"]),
        ("last token", lasts, replayed["end_to_end_s"]),
    ):
        print(f"{name:6} {what}: ", end="")
        for share in _SHARES:
            times = again[share] / seen[share]
            print(
                f" {share} {seen[share]:.3f} s, replayed {again[share]:.3f} ({times:.2f})", end=""
            )
        print(flush=True)
    return {"shape": name, "first_token_s": firsts, "last_token_s": lasts, "replayed": replayed}


def percentiles(values: list[float]) -> dict[str, float]:
    return {name: float(np.quantile(values, share)) for name, share in _SHARES.items()}


def main(args: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as folder:
        at = Path(args.keep or folder)
        at.mkdir(exist_ok=True)
        cost = args.step_cost or measured_cost(at)
        results = [measure(name, cost, at, args) for name in args.shapes]
    print(json.dumps({"load": os.getloadavg()[0], "shapes": results}))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shapes", nargs="*", default=[*SHAPES], metavar="shape")
    parser.add_argument("--step-cost", help="what a step costs, as of `pagoda replay`")
    parser.add_argument("--keep", help="a folder in which traces and the cost are left")
    parser.add_argument("--num-blocks", type=int, default=512)
    parser.add_argument("--seed", type=int, default=1)
    main(parser.parse_args())
