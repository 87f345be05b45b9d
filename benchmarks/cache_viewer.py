"""What somebody who looks at `/cache` costs the server: tokens a second with a viewer and without.

    python benchmarks/cache_viewer.py [--sequences 4] [--pairs 20] [--seconds 4] [--blocks 2000]
    python benchmarks/cache_viewer.py --sizes 2000 10000 100000 1000000

The default model decodes for so many sequences without end, in a server of this process; a viewer
in a process of its own comes and goes, a window with it and one without by turns, in an order that
alternates. Other work on the machine blurs a window by more than a viewer costs, so two things are
told: the median ratio of the pairs with its interval, by sign, at 95%; and what a look takes,
measured by itself: of the engine's thread, and of the event loop. Prints a JSON line at the end.

`--sizes`: what a look takes of processor time by blocks in the pool, half of them in use by three
tenants; medians. No model is loaded.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from math import comb

from pagoda.cache import CacheManager
from pagoda.cache.explainer import MissExplainer
from pagoda.engine.async_engine import AsyncEngine
from pagoda.engine.cache_snapshot import CacheSnapshot
from pagoda.engine.options import EngineOptions
from pagoda.request import SamplingParams
from pagoda.server.app import create_app
from pagoda.server.cache_lookout import PERIOD_S
from pagoda.server.cache_view import CacheView, OperatorView, TenantView
from pagoda.server.listener import bind, start_listening, url_of
from pagoda.server.options import ServerOptions
from pagoda.server.run import config_of

BLOCK_SIZE = 16
TENANTS = ("ann", "bob", "cyd")
VIEWER = """
import sys, urllib.request
answer = None
for line in sys.stdin:
    if answer is not None:
        answer.close()
        answer = None
    if line.strip() == "look":
        import threading
        answer = urllib.request.urlopen(sys.argv[1] + "/cache/events")
        def read(answer=answer):
            try:
                while answer.readline(): pass
            except (OSError, ValueError, AttributeError):
                pass
        threading.Thread(target=read, daemon=True).start()
    print("done", flush=True)
"""


class Viewer:
    """A process that looks or does not."""

    def __init__(self, url: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", VIEWER, url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def tell(self, what: str) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{what}\n")
        self._process.stdin.flush()
        self._process.stdout.readline()

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sequences", type=int, default=4)
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--blocks", type=int, default=2000)
    parser.add_argument("--sizes", type=int, nargs="+")
    args = parser.parse_args()
    if args.sizes:
        for num_blocks in args.sizes:
            tell_size(num_blocks)
        return
    engine = AsyncEngine.load(EngineOptions(num_gpu_blocks_override=args.blocks))
    engine.warm_up()
    with bind("127.0.0.1", 0) as listener:
        asyncio.run(serve(engine, listener, args))


async def serve(engine: AsyncEngine, listener: object, args: argparse.Namespace) -> None:
    import uvicorn

    start_listening(listener)  # type: ignore[arg-type]
    server = uvicorn.Server(config_of(create_app(engine), ServerOptions()))
    serving = asyncio.create_task(server.serve(sockets=[listener]))  # type: ignore[list-item]
    while not server.started:
        await asyncio.sleep(0.05)
    load = [asyncio.create_task(decode(engine, number)) for number in range(args.sequences)]
    await asyncio.sleep(3)
    viewer = Viewer(url_of(listener))  # type: ignore[arg-type]
    try:
        ratios, rates = await compare(engine, viewer, args)
        tell(args, ratios, rates, *await looks(engine))
    finally:
        viewer.end()
        for each in load:
            each.cancel()
        server.should_exit = True
        await serving


async def decode(engine: AsyncEngine, number: int) -> None:
    """One sequence, again and again."""
    sampling = SamplingParams(max_tokens=1500, ignore_eos=True, temperature=0)
    for turn in range(10**6):
        stream = engine.generate(f"Story {number} {turn}:", sampling, request_id=f"{number}-{turn}")
        async for _ in stream:
            pass


async def compare(
    engine: AsyncEngine, viewer: Viewer, args: argparse.Namespace
) -> tuple[list[float], list[float]]:
    """Tokens a second with a viewer over those without, by pair; and those without."""
    ratios, rates = [], []
    for pair in range(args.pairs):
        found = {}
        for looks in (True, False) if pair % 2 else (False, True):
            await asyncio.to_thread(viewer.tell, "look" if looks else "go")
            await asyncio.sleep(0.5)
            before, began = engine.stats().generation_tokens, time.perf_counter()
            await asyncio.sleep(args.seconds)
            num_tokens = engine.stats().generation_tokens - before
            found[looks] = num_tokens / (time.perf_counter() - began)
        ratios.append(found[True] / found[False])
        rates.append(found[False])
    return ratios, rates


async def looks(engine: AsyncEngine) -> tuple[float, float]:
    """Median seconds of a look: of the engine's thread, and of the event loop."""
    view, taken, told = OperatorView(), [], []
    for _ in range(50):
        snapshot = await engine.cache_snapshot()
        began = time.thread_time()
        view.told(snapshot).model_dump_json()
        told.append(time.thread_time() - began)
        taken.append(snapshot.took_s)
        await asyncio.sleep(0.02)
    return statistics.median(taken), statistics.median(told)


def tell_size(num_blocks: int) -> None:
    """What a look takes, by whom it is for."""
    misses = MissExplainer(num_blocks, BLOCK_SIZE)
    cache = CacheManager(num_blocks, BLOCK_SIZE, watchers=[misses])
    draw = random.Random(0)
    for number in range(num_blocks // 60):
        table = cache.open(tenant=TENANTS[number % len(TENANTS)])
        tokens = [draw.randrange(50_000) for _ in range(30 * BLOCK_SIZE)]
        cache.acquire(table, tokens, cache.match(table, tokens))
        cache.reserve(table, 0, len(tokens))
        cache.commit(table, tokens, len(tokens))
        if number % 3:
            cache.free(table)
    snapshot = CacheSnapshot.of(cache, (), misses)
    views: dict[str, CacheView] = {"operator": OperatorView(), "tenant": TenantView(TENANTS[0])}
    taken = {"snapshot": processor_time(lambda: CacheSnapshot.of(cache, (), misses))}
    for name, view in views.items():
        taken[name] = processor_time(lambda view=view: view.told(snapshot).model_dump_json())
    figures = {name: round(seconds * 1e6) for name, seconds in taken.items()}
    print(json.dumps({"benchmark": "cache_viewer", "blocks": num_blocks, "us": figures}))


def processor_time(do: Callable[[], object]) -> float:
    """Median seconds of this thread."""
    taken = []
    for _ in range(25):
        began = time.thread_time()
        do()
        taken.append(time.thread_time() - began)
    return statistics.median(taken)


def interval(values: list[float]) -> tuple[float, float]:
    """Of the median, at 95%, by signs alone."""
    ordered, n = sorted(values), len(values)
    outside, number = 0.0, 0
    while number < n // 2:
        outside += 2 * comb(n, number) / 2**n
        if outside > 0.05:
            break
        number += 1
    return ordered[max(0, number - 1)], ordered[n - max(1, number)]


def tell(
    args: argparse.Namespace, ratios: list[float], rates: list[float], taken_s: float, told_s: float
) -> None:
    median, (low, high) = statistics.median(ratios), interval(ratios)
    share = taken_s / PERIOD_S
    rate = statistics.median(rates)
    print(f"{args.sequences} sequences, {args.blocks} blocks, {rate:.1f} tokens/s")
    print(f"with a viewer: {median:.4f} of that ({low:.4f} to {high:.4f})")
    print(f"a look: {taken_s * 1e6:.0f} us of the engine's thread, {share:.3%} of its time;")
    print(f"        {told_s * 1e6:.0f} us of the event loop's, {told_s / PERIOD_S:.2%}")
    figures = {
        "benchmark": "cache_viewer",
        "sequences": args.sequences,
        "blocks": args.blocks,
        "pairs": args.pairs,
        "tokens_per_second": round(statistics.median(rates), 2),
        "ratio": [round(value, 4) for value in (low, median, high)],
        "engine_us": round(taken_s * 1e6, 1),
        "loop_us": round(told_s * 1e6, 1),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
