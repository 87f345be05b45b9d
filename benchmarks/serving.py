"""What the server adds to its engine, how it does in a flood, and what its timing gives away.

    python benchmarks/serving.py streams [--clients 16]
    python benchmarks/serving.py flood [--clients 1000 --queue 64]
    python benchmarks/serving.py probes [--count 500] [--kv-tier disk:PATH,size=1GiB …]
        [--kv-tier-key-file FILE] [--probers another same]

Probes come in pairs, a prompt that was asked before and one that was not, in either order. Of their
times `probes` prints the area under the curve with an interval by the bootstrap. With 500 pairs it
is some 0.07 wide where nothing can be told, with 25 some 0.3.

With `--kv-tier` a prompt is probed after the server's own cache was emptied, once the tier has it:
then what answers is the tier, and first tokens could tell of that. A tier that is shared needs
`store=always` here, since nobody asks anything a second time.

Each starts `pagoda serve` as a process of its own and speaks HTTP to it over plain sockets. Clients
share the machine with the server, so `streams` looks at its sockets now and then only: what a
client does is not the server's. Prints a few lines, then one JSON line.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil
from guard import guarded
from numpy.typing import NDArray

if TYPE_CHECKING:
    from pagoda.engine.core import Engine

_COMMAND = "from pagoda.cli.main import main; main()"
_KEYS = {"the-key-of-alice": "alice", "the-key-of-bob": "bob"}
ALICE, BOB = _KEYS
OPERATOR = "the-key-of-whoever-runs-it"
PROBERS = {"another": (BOB, 0), "same": (ALICE, 10**6)}
"""The key of whoever probes what Alice asked, and the number of their first prompt."""
_OUTPUT_TOKENS = 200
_STREAM_BYTES = 2**28
"""Little, so that after a few runs no page of it is used for the first time."""
_PROBE_TOKENS = 160
_WARM_PAIRS = 8
"""Probed before anything counts."""
_NUM_DRAWS = 2000
_LOOK_S = 0.1
_STORED_S = 0.05
"""Nothing more is stored after this."""


class Server:
    """A running server: its address and its process."""

    def __init__(self, port: int, process: psutil.Process) -> None:
        self.port = port
        self.process = process

    async def ask(
        self, body: dict[str, Any] | None, route: str = "/v1/completions", key: str = ALICE
    ) -> tuple[int, list[float], str]:
        """Status, the times at which parts of the answer came, and all of it."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            content = b"" if body is None else json.dumps(body).encode()
            method = "GET" if body is None else "POST"
            writer.write(_head(method, route, key, len(content)) + content)
            times, parts = [], []
            while part := await reader.read(65536):
                times.append(time.perf_counter())
                parts.append(part)
        finally:
            writer.close()
        text = b"".join(parts).decode("utf-8", "replace")
        return int(text.split(" ", 2)[1]), times, text


@asynccontextmanager
async def serving(*flags: str) -> AsyncIterator[Server]:
    """A server with two keys, until the block ends."""
    with tempfile.TemporaryDirectory() as folder:
        keys = Path(folder) / "keys"
        keys.write_text("".join(f"{key} {tenant}\n" for key, tenant in _KEYS.items()))
        command = [sys.executable, "-c", _COMMAND, "serve", "--port", "0", "--api-key-file"]
        log = Path(folder) / "log"
        with log.open("w") as file:
            process = subprocess.Popen(
                [*command, str(keys), *flags], stderr=file, start_new_session=True
            )
        try:
            with guarded(process):
                while not (url := re.search(r"http://[\d.]+:(\d+)", log.read_text())):
                    if process.poll() is not None:
                        sys.exit(log.read_text())
                    await asyncio.sleep(0.05)
                yield Server(int(url.group(1)), psutil.Process(process.pid))
        finally:
            process.terminate()
            await asyncio.to_thread(process.wait)


def prompt_ids(number: int, count: int) -> list[int]:
    return random.Random(number).choices(range(1000, 40000), k=count)


async def streams(args: argparse.Namespace) -> dict[str, Any]:
    """Time per output token while clients stream, and of the same batch without a server.

    They take turns, so that both see the machine at its faster and at its slower moments.
    """
    body = {"temperature": 0, "max_tokens": _OUTPUT_TOKENS, "ignore_eos": True, "stream": True}
    served: list[float] = []
    alone: list[float] = []
    async with serving("--kv-cache-memory-bytes", str(_STREAM_BYTES)) as server:
        engine = build_batch_engine()
        for run in range(args.repeat):
            prompts = [prompt_ids(1000 * run + client, 64) for client in range(args.clients)]
            bodies = [{**body, "prompt": prompt} for prompt in prompts]
            served.append(await asyncio.to_thread(time_streams, server.port, bodies))
            alone.append(await asyncio.to_thread(time_batch, engine, prompts, f"batch-{run}"))
    print(f"time per output token of {args.clients} streams, best of {args.repeat}:")
    print(
        f"  from the server {min(served) * 1e3:.2f} ms, from the engine {min(alone) * 1e3:.2f} ms"
    )
    print(f"  {min(served) / min(alone):.2f} times")
    return {"server_seconds": served, "engine_seconds": alone}


def time_streams(port: int, bodies: Sequence[dict[str, Any]]) -> float:
    """Seconds per output token from when all streams have begun until the first one ends."""
    streams = [Stream(port, body) for body in bodies]
    seen: list[tuple[float, int]] = []
    while all(stream.is_open for stream in streams):
        time.sleep(_LOOK_S)
        for stream in streams:
            stream.look()
        if all(stream.num_events for stream in streams):
            seen.append((time.perf_counter(), sum(stream.num_events for stream in streams)))
    while any(stream.is_open for stream in streams):
        time.sleep(_LOOK_S)
        for stream in streams:
            stream.look()
    if len(seen) < 3:
        sys.exit("the streams did not run side by side for long enough: fewer --clients?")
    (started, before), (ended, after) = seen[0], seen[-2]
    return (ended - started) * len(streams) / (after - before)


class Stream:
    """One client's answer, of which the events are counted."""

    def __init__(self, port: int, body: dict[str, Any]) -> None:
        content = json.dumps(body).encode()
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.sendall(_head("POST", "/v1/completions", ALICE, len(content)) + content)
        self._socket.setblocking(False)
        self._is_answered = False
        self.num_events = 0
        self.is_open = True

    def look(self) -> None:
        """Take what has come."""
        while self.is_open:
            try:
                part = self._socket.recv(1 << 20)
            except BlockingIOError:
                return
            assert self._is_answered or part.startswith(b"HTTP/1.1 200"), part
            self._is_answered = True
            self.num_events += part.count(b"data: {")
            if not part:
                self.is_open = False
                self._socket.close()


def _head(method: str, route: str, key: str, num_bytes: int) -> bytes:
    return (
        f"{method} {route} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {num_bytes}\r\n"
        "Connection: close\r\n\r\n"
    ).encode()


def build_batch_engine() -> Engine:
    """The server's engine without a server, its cache populated like the server's."""
    from pagoda.engine.build import assemble, load_model
    from pagoda.engine.options import EngineOptions

    options = EngineOptions(kv_cache_memory_bytes=_STREAM_BYTES)
    engine, running = assemble(load_model(options), options)
    for _ in running.chores:
        pass
    return engine


def time_batch(engine: Engine, prompts: Sequence[list[int]], name: str) -> float:
    """Seconds per output token while all requests of a batch run."""
    from pagoda.request import SamplingParams

    sampling = SamplingParams(temperature=0, max_tokens=_OUTPUT_TOKENS, ignore_eos=True)
    for number, prompt in enumerate(prompts):
        engine.add(engine.intake.request(f"{name}-{number}", prompt, sampling))
    times = []
    while engine.has_unfinished:
        outputs = engine.step()
        if len(outputs) == len(prompts) and not any(output.finished for output in outputs):
            times.append(time.perf_counter())
    return (times[-1] - times[0]) / (len(times) - 1)


async def flood(args: argparse.Namespace) -> dict[str, Any]:
    """More clients at once than there is room for, while somebody asks for the server's health."""
    flags = ("--max-num-queued-reqs", str(args.queue), "--kv-cache-memory-bytes", "1GiB")
    async with serving(*flags) as server:
        body = {"temperature": 0, "max_tokens": 16, "ignore_eos": True}
        await server.ask({**body, "prompt": "Hello"})
        memory, health = server.process.memory_info().rss, []

        async def watch() -> None:
            while True:
                started = time.perf_counter()
                status, times, _ = await server.ask(None, "/health")
                assert status == 200
                health.append(times[-1] - started)
                await asyncio.sleep(0.01)

        watching = asyncio.create_task(watch())
        asked = [
            server.ask({**body, "prompt": prompt_ids(number, 32)}) for number in range(args.clients)
        ]
        answers = await asyncio.gather(*asked)
        watching.cancel()
        grown = server.process.memory_info().rss - memory
    statuses = Counter(status for status, _, _ in answers)
    p99 = sorted(health)[int(len(health) * 0.99)]
    print(f"{args.clients} clients, a queue of {args.queue}: {dict(statuses)}")
    print(f"  /health: p99 {p99 * 1e3:.0f} ms of {len(health)}; memory grew by {grown >> 20} MiB")
    return {"statuses": statuses, "health_p99_seconds": p99, "grown_bytes": grown}


async def probes(args: argparse.Namespace) -> dict[str, Any]:
    """Can a prompt's time to first token tell whether somebody has asked it before?"""
    flags = ["--kv-cache-memory-bytes", "2GiB", "--max-model-len", "1024"]
    for tier in args.kv_tier:
        flags += ["--kv-tier", tier]
    if args.kv_tier_key_file:
        flags += ["--kv-tier-key-file", args.kv_tier_key_file]
    if args.kv_tier:
        flags += ["--dev-mode", "--api-key", OPERATOR]
    async with serving(*flags) as server:
        if args.kv_tier:
            await learn_rates(server)
        has_tier = bool(args.kv_tier)
        print(f"{args.count} prompts asked before and {args.count} not, told apart by time (AUC):")
        found = {
            prober: await probe(server, args.count, prober, has_tier=has_tier)
            for prober in args.probers
        }
        loaded = await tier_frames(server, "loaded") if has_tier else 0
    if has_tier:
        print(f"  {loaded:,.0f} frames came from the tier")
    return {**found, "frames_loaded": loaded}


async def learn_rates(server: Server) -> None:
    """Prompts enough that the server knows how quickly it computes."""
    for number in range(5):
        body = {"temperature": 0, "max_tokens": 1, "prompt": prompt_ids(2 * 10**6 + number, 160)}
        assert (await server.ask(body))[0] == 200


async def empty_cache(server: Server) -> None:
    """Once the tier has got what was stored last."""
    before = -1.0
    while before != (before := await tier_frames(server, "stored")):
        await asyncio.sleep(_STORED_S)
    status, _, _ = await server.ask({}, "/reset_prefix_cache", OPERATOR)
    assert status == 200


async def tier_frames(server: Server, direction: str) -> float:
    _, _, text = await server.ask(None, "/metrics", OPERATOR)
    pattern = rf'^pagoda:kv_tier_frames_total\{{.*"{direction}".*\}} (\S+)$'
    return sum(map(float, re.findall(pattern, text, re.MULTILINE)))


async def probe(server: Server, count: int, prober: str, *, has_tier: bool) -> dict[str, Any]:
    """How well it can be told what Alice has asked: a hit and a miss after the other, which of them
    first by chance, so that whatever the machine is at meets both. The first pairs do not count."""
    key, start = PROBERS[prober]
    order, pairs = random.Random(start), list[tuple[float, float]]()
    for number in range(_WARM_PAIRS + count):
        taken = {}
        for is_hit in order.sample((True, False), 2):
            taken[is_hit] = await probe_once(
                server, key, start + 2 * number + is_hit, is_hit=is_hit, has_tier=has_tier
            )
        pairs.append((taken[True], taken[False]))
    hits, misses = np.array(pairs[_WARM_PAIRS:]).T
    auc, (low, high) = area_under_curve(hits, misses), bootstrap_interval(hits, misses)
    print(
        f"  by {prober} {auc:.3f}, 95% of {low:.3f} to {high:.3f}; 0.5 is guessing."
        f" Medians: hit {median(hits) * 1e3:.1f} ms, miss {median(misses) * 1e3:.1f} ms",
        flush=True,
    )
    return {
        "auc": auc,
        "interval": (low, high),
        "quicker_of_pair": float(np.mean(hits < misses) + np.mean(hits == misses) / 2),
    }


async def probe_once(
    server: Server, key: str, number: int, *, is_hit: bool, has_tier: bool
) -> float:
    """Seconds to the first byte of an answer to a prompt that Alice has asked, or another one as
    long: something is asked in either case, so that the server has done as much."""
    body = {"temperature": 0, "max_tokens": 1}
    own, other = prompt_ids(number, _PROBE_TOKENS), prompt_ids(number + 700_000, 16)
    other += prompt_ids(number + 500_000, _PROBE_TOKENS - 16)
    status, _, _ = await server.ask({**body, "prompt": own if is_hit else other})
    assert status == 200
    if has_tier:
        await empty_cache(server)
    began = time.perf_counter()
    status, times, _ = await server.ask({**body, "prompt": own}, key=key)
    assert status == 200
    return times[0] - began


def area_under_curve(hits: NDArray[np.float64], misses: NDArray[np.float64]) -> float:
    """Chance that a hit was quicker than a miss; half of the ties."""
    ordered = np.sort(misses)
    slower = len(ordered) - np.searchsorted(ordered, hits, side="right")
    no_quicker = len(ordered) - np.searchsorted(ordered, hits, side="left")
    return float((slower + no_quicker).mean() / 2 / len(ordered))


def bootstrap_interval(
    hits: NDArray[np.float64], misses: NDArray[np.float64]
) -> tuple[float, float]:
    """95% of the area under the curve, pairs drawn anew."""
    draw = np.random.default_rng(0)
    chosen = draw.integers(0, len(hits), (_NUM_DRAWS, len(hits)))
    found = [area_under_curve(hits[each], misses[each]) for each in chosen]
    low, high = np.quantile(found, (0.025, 0.975))
    return float(low), float(high)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["streams", "flood", "probes"])
    parser.add_argument("--clients", type=int)
    parser.add_argument("--queue", type=int, default=64)
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--kv-tier", action="append", default=[], help="of probes")
    parser.add_argument("--kv-tier-key-file", help="of probes")
    parser.add_argument(
        "--probers",
        nargs="+",
        choices=list(PROBERS),
        default=list(PROBERS),
        help="another tenant, and the one that asked",
    )
    args = parser.parse_args()
    args.clients = args.clients or {"streams": 16, "flood": 1000, "probes": 1}[args.what]
    measured = asyncio.run({"streams": streams, "flood": flood, "probes": probes}[args.what](args))
    print(json.dumps({"what": args.what, **measured}))


if __name__ == "__main__":
    main()
