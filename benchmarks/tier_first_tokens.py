"""What tiers do to first tokens: a conversation from each of them, from the pool, and computed.

    python benchmarks/tier_first_tokens.py [--tiers disk redis s3] [--added-ms 0 5 50]
        [--tokens 4096] [--repeat 5] [--hot 20] [--block-size 16] [--model PATH] [--json]

Each setting has an engine of its own over the same weights, a gate and deadlines as ever. In every
round each of them is asked for the same prompt of so many random tokens, and for one token of an
answer:

    recompute   without tiers, nothing is cached
    pool        without tiers, all is cached
    disk …      nothing is cached and the tier has all; whether it is loaded the gate says
    declined    S3 has all, 50 ms away and at a rate at which the gate says no
    hot         all is cached: by turns without any tier, and with S3 behind

Redis and S3 run on this machine; `--added-ms` holds their answers up by so much, in a process
between. S3 is moto's server, which is in Python. Prints a table of medians, what came from the
cache, and times as long as recomputing; then one JSON line; with `--json` that line alone.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from tier_stores import BUCKET, KEYS, RedisServer, elsewhere, far_away, serve_s3

from pagoda.engine.build import Model, connect, load_model
from pagoda.engine.core import Engine
from pagoda.engine.options import EngineOptions
from pagoda.request import SamplingParams
from pagoda.tiers.key_file import write_new_secret

FAR = ("redis", "s3")
DECLINED = "declined"
_DECLINED_MS, _DECLINED_BYTES_PER_S = 50.0, 1e6
RECOMPUTE, POOL = "recompute", "pool"
_ONE_TOKEN = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True)
_PATIENCE_S = 120.0
_NUM_WARM = 3
"""Prompts that are computed before anything counts: kernels are compiled, rates measured."""


@dataclass
class Place:
    """Where the prefix is, and what first tokens took."""

    name: str
    added_ms: float = 0.0
    seconds: list[float] = field(default_factory=list)
    cached_tokens: list[int] = field(default_factory=list)

    @property
    def median_s(self) -> float:
        return median(self.seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tiers", nargs="+", choices=("disk", *FAR), default=["disk", *FAR])
    parser.add_argument("--added-ms", type=float, nargs="+", default=[0, 5, 50])
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--hot", type=int, default=20, help="pairs of questions to a hot cache")
    parser.add_argument("--block-size", type=int, default=16)
    parser.add_argument("--model", help="a path; the default model if left out")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    os.environ.update(KEYS)
    with tempfile.TemporaryDirectory(prefix="pagoda-tiers-", dir=args.folder) as folder:
        measured = measure(args, Path(folder))
    if not args.json:
        print_table(measured)
    print(json.dumps({"benchmark": "tier_first_tokens", "tokens": args.tokens, **measured}))


def measure(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    bench = Bench(args, folder)
    with ExitStack() as ending:
        plain = bench.engine()
        engines = {
            (name, added_ms): bench.engine(ending.enter_context(option(folder, name, added_ms)))
            for name in args.tiers
            for added_ms in (args.added_ms if name in FAR else [0.0])
        }
        if "s3" in args.tiers:
            far = option(folder, DECLINED, _DECLINED_MS)
            engines[DECLINED, _DECLINED_MS] = bench.engine(ending.enter_context(far))
        for engine in engines.values():
            ending.callback(engine.close)
        for engine in (plain, *engines.values()):
            bench.warm_up(engine)
        prompt = bench.prompt(0)
        for engine in engines.values():
            fill(engine, prompt)
        places = [Place(RECOMPUTE), Place(POOL), *(Place(*key) for key in engines)]
        for _ in range(args.repeat):
            for place in places:
                engine = engines.get((place.name, place.added_ms), plain)
                if place.name != POOL:
                    engine.reset_prefix_cache()
                seconds, num_cached = first_token(engine, prompt)
                place.seconds.append(seconds)
                place.cached_tokens.append(num_cached)
        behind = next((engine for key, engine in engines.items() if key[0] == "s3"), None)
        hot = None if behind is None else hot_times(plain, behind, prompt, args.hot)
        return {
            "places": [told(place, places[0]) for place in places],
            "tiers": {f"{name}+{added:g}ms": state(e) for (name, added), e in engines.items()},
            "prefill_tokens_per_s": plain.watch.prefill_rate.tokens_per_s,
            "hot": hot,
        }


class Bench:
    """Engines over one model."""

    def __init__(self, args: argparse.Namespace, folder: Path) -> None:
        self._num_tokens = args.tokens
        self._given: dict[str, Any] = {
            "block_size": args.block_size,
            "max_model_len": args.tokens + args.block_size,
            "num_gpu_blocks_override": 3 * (args.tokens // args.block_size + 2),
        }
        if args.model:
            self._given["model"] = args.model
        self._model: Model = load_model(EngineOptions(**self._given))
        self._key = folder / "key"
        write_new_secret("key", self._key)

    def engine(self, tier: str | None = None) -> Engine:
        """With one tier, or none."""
        key = {"kv_tier": [tier], "kv_tier_key_file": str(self._key)} if tier else {}
        return connect(self._model, EngineOptions(**self._given, **key))

    def prompt(self, number: int) -> list[int]:
        return random.Random(number).choices(range(100, 40_000), k=self._num_tokens)

    def warm_up(self, engine: Engine) -> None:
        """Other prompts, which are no longer cached afterwards."""
        for number in range(1, 1 + _NUM_WARM):
            first_token(engine, self.prompt(number)[: self._num_tokens // 2])
        settle(engine)
        engine.reset_prefix_cache()


def first_token(engine: Engine, prompt: list[int]) -> tuple[float, int]:
    """Seconds from a question to the first token of the answer, and what came from the cache."""
    request = engine.intake.request(f"{time.monotonic_ns()}", prompt, _ONE_TOKEN)
    began = time.perf_counter()
    engine.add(request)
    while True:
        for output in engine.step():
            if output.finished:
                return time.perf_counter() - began, output.num_cached_tokens


def fill(engine: Engine, prompt: list[int]) -> None:
    """Until the tier has the prompt, and it is known how quick it is."""
    until = time.monotonic() + _PATIENCE_S
    while not engine.transfers.stats().shelves[0].bytes_per_s:
        assert time.monotonic() < until, "the tier does not answer"
        time.sleep(0.05)
    first_token(engine, prompt)
    settle(engine)


def settle(engine: Engine) -> None:
    """Until all that is to be stored is."""
    transfers: Any = engine.transfers
    if not transfers.stats().shelves:
        return
    until = time.monotonic() + _PATIENCE_S
    while transfers._stores.num_waiting:
        assert time.monotonic() < until, "storing takes too long"
        transfers.hand_out(is_idle=False)
        time.sleep(0.001)
    assert transfers._mover.wait_until_stored(_PATIENCE_S), "storing takes too long"


def hot_times(plain: Engine, behind: Engine, prompt: list[int], num_pairs: int) -> dict[str, Any]:
    """First tokens of a prompt that the pool has, without a tier and with one behind, in turns."""
    seconds: dict[str, list[float]] = {"without": [], "with": []}
    for engine in (plain, behind):
        for _ in range(2):
            first_token(engine, prompt)
    for number in range(num_pairs):
        pair = [("without", plain), ("with", behind)]
        for name, engine in pair if number % 2 else reversed(pair):
            seconds[name].append(first_token(engine, prompt)[0])
    without, with_tier = median(seconds["without"]), median(seconds["with"])
    return {"without_s3_s": without, "with_s3_s": with_tier, "times": with_tier / without}


def told(place: Place, recompute: Place) -> dict[str, Any]:
    return {
        **asdict(place),
        "median_s": place.median_s,
        "times_recompute": place.median_s / recompute.median_s,
    }


def state(engine: Engine) -> dict[str, Any]:
    """What an engine knows of its tier, and how loads ended."""
    stats = engine.transfers.stats()
    [shelf] = stats.shelves
    return {
        "round_trip_s": shelf.round_trip_s,
        "bytes_per_s": shelf.bytes_per_s,
        "endings": dict(stats.endings),
        "failures": dict(shelf.counts.failures),
    }


def print_table(measured: dict[str, Any]) -> None:
    head = ("prefix from", "added ms", "first token s", "cached", "× recompute")
    print("{:12} {:>9} {:>14} {:>8} {:>12}".format(*head))
    for place in measured["places"]:
        print(
            f"{place['name']:12} {place['added_ms']:9g} {place['median_s']:14.3f} "
            f"{max(place['cached_tokens']):8,} {place['times_recompute']:12.3f}"
        )
    for name, each in measured["tiers"].items():
        print(f"{name}: {each['endings']}, {(each['bytes_per_s'] or 0) / 1e6:,.0f} MB/s")
    hot = measured["hot"]
    if hot is not None:
        print(
            f"hot: {hot['without_s3_s'] * 1e3:.1f} ms without a tier, "
            f"{hot['with_s3_s'] * 1e3:.1f} ms with S3 behind: {hot['times']:.3f} times"
        )


# ---- tiers ---------------------------------------------------------------------------------------


@contextmanager
def option(folder: Path, name: str, added_ms: float) -> Iterator[str]:
    """What `kv_tier` says of a tier that runs until the block ends."""
    always = f"store=always,timeout={_PATIENCE_S:g}"
    if name == "disk":
        yield f"disk:{folder / 'disk'},size=20GiB,{always}"
    elif name == "redis":
        own = folder / f"redis-{added_ms:g}"
        own.mkdir()
        server = RedisServer(own)
        try:
            with far_away(server.port, added_ms / 1000) as port:
                yield f"redis://127.0.0.1:{port},{always}"
        finally:
            server.kill()
    else:
        rate = _DECLINED_BYTES_PER_S if name == DECLINED else None
        with (
            elsewhere(serve_s3) as server_port,
            far_away(server_port, added_ms / 1000, rate) as port,
        ):
            yield f"s3://{BUCKET}/frames,endpoint=http://127.0.0.1:{port},compression=none,{always}"


if __name__ == "__main__":
    main()
