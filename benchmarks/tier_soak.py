"""A disk tier under much more traffic than it holds: bytes, memory, hits against the best there is.

    python benchmarks/tier_soak.py [--size 2GiB] [--traffic 20GiB] [--minutes 30] [--pool 192MiB]
        [--warm-up MINUTES] [--aborts 0] [--without-tier] [--trace "synthetic:rag?..."]
        [--concurrent 8] [--check 50] [--folder PATH]

Serves a trace until so many bytes went to the tier and came from it, or so many minutes have
passed: a small random model with large keys and values (32 KiB a token), a pool that is too small,
and a tier that is too small as well. The engine is told that it computes slowly, so that its gate
opens; all else is as ever.

    bytes     of all files in the tier's folder, looked at all the time: the most there were
    memory    of the process, the middle of each minute, and its slope by least squares after a
              warm-up, a third of the time where none is given: bytes a minute, and a request
    hits      of the tokens that were asked for: from pool and tier, against an LRU cache of as many
              blocks in one pool, and against the best that knowing the future can do (Belady);
              not with `--aborts`
    wrong     of every `--check`-th answer, those that an engine without tiers gives otherwise

With `--aborts 5` answers have eight tokens, and after 5 of 100 steps some request is aborted, be it
queued, loading, in prefill or in decode. `--without-tier` is the same without one, for what an
engine's memory does by itself. Nothing is kept of a request that has ended, so what grows is not
the benchmark. Prints one JSON line.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import threading
import time
from array import array
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from numpy.typing import NDArray

sys.path.append(str(Path(__file__).parent.parent / "tests"))

from checkpoints import Case, write_checkpoint
from pagoda.byte_size import parse_byte_size
from pagoda.cache import CacheManager
from pagoda.engine.build import connect, load_model
from pagoda.engine.core import Engine
from pagoda.engine.options import EngineOptions
from pagoda.engine.outputs import RequestOutput
from pagoda.engine.prefill_rate import PrefillRate
from pagoda.replay.cache_replay import replay_cache
from pagoda.replay.clairvoyant import References
from pagoda.replay.find_trace import find_trace
from pagoda.replay.trace import TracedRequest
from pagoda.request import SamplingParams
from pagoda.tiers.disk_folder import on_disk

BLOCK_SIZE = 16
MODEL = Case(
    "llama",
    {
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "head_dim": 512,
        "hidden_size": 64,
        "max_position_embeddings": 2048,
    },
)
TOKEN_BYTES = 2 * 2 * 4 * 512 * 4
"""Layers, keys and values, heads, numbers, bytes of float32."""
LONGEST = 2048
TRACE = (
    "synthetic:rag?requests=200000&seed=1&system=64&documents=600&chosen=1&document=480&message=32"
)
_VOCABULARY = 256
_TOKEN_S = 0.002
"""What the engine is told that a token of a prompt takes."""
_LOOK_S = 0.5
_ONE_TOKEN = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True)
_SOME_TOKENS = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)


class SlowPrefill(PrefillRate):
    """Of a machine on which a disk is worth asking."""

    def note(self, num_tokens: int, num_sequences: int, seconds: float) -> None:
        pass

    def seconds(self, num_tokens: int) -> float:
        return _TOKEN_S * num_tokens


class Lookout(threading.Thread):
    """Looks at the folder and at the process all the time."""

    def __init__(self, folder: Path, served: Served) -> None:
        super().__init__(daemon=True)
        self._folder = folder
        self._served = served
        self._process = psutil.Process()
        self._is_over = threading.Event()
        self.most_bytes = 0
        self.looks = array("d")
        """Of each the minute, bytes of memory, and how many requests had been served."""

    def run(self) -> None:
        began = time.monotonic()
        while not self._is_over.wait(_LOOK_S):
            self.most_bytes = max(self.most_bytes, bytes_in(self._folder))
            minute, size = (time.monotonic() - began) / 60, self._process.memory_info().rss
            self.looks.extend((minute, size, self._served.num_served))

    def end(self) -> None:
        self._is_over.set()
        self.join()

    def memory(self, warm_up_minutes: float | None) -> dict[str, Any]:
        """What the process took, and how that grew once it was warm."""
        minute, size, served = np.array(self.looks).reshape(-1, 3).T
        whole = minute.astype(int)
        warm_up = minute[-1] / 3 if warm_up_minutes is None else warm_up_minutes
        is_warm = minute >= warm_up
        return {
            "num_looks": len(minute),
            "resident_bytes": int(size[-1]),
            "mib_by_minute": [
                round(float(np.median(size[whole == number])) / 2**20, 1)
                for number in range(whole[-1] + 1)
            ],
            "warm_up_minutes": warm_up,
            "slope_mib_per_minute": slope(minute[is_warm], size[is_warm]) / 2**20,
            "slope_bytes_per_request": slope(served[is_warm], size[is_warm]),
        }


def slope(at: NDArray[np.float64], size: NDArray[np.float64]) -> float:
    """By least squares; of too few, not a number."""
    return float(np.polyfit(at, size, 1)[0]) if len(set(at)) > 1 else float("nan")


def bytes_in(folder: Path) -> int:
    """As the disk counts them, of files that were there at one moment: some go while others are
    still to be found, so all are looked at twice."""
    found: dict[str, int] = {}
    for where, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(where, name)
            with suppress(FileNotFoundError):
                found[path] = os.stat(path).st_blocks * 512
    return sum(size for path, size in found.items() if os.path.exists(path))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", default="2GiB", help="of the tier")
    parser.add_argument("--traffic", default="20GiB", help="stored and loaded")
    parser.add_argument("--minutes", type=float, default=30.0, help="at most")
    parser.add_argument("--warm-up", type=float, help="minutes; a third of the time if left out")
    parser.add_argument("--aborts", type=int, default=0, help="after so many of 100 steps")
    parser.add_argument("--without-tier", action="store_true")
    parser.add_argument("--pool", default="192MiB", help="memory of the cache")
    parser.add_argument("--trace", default=TRACE)
    parser.add_argument("--concurrent", type=int, default=8)
    parser.add_argument("--check", type=int, default=50)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="pagoda-soak-", dir=args.folder) as folder:
        print(json.dumps({"benchmark": "tier_soak", **soak(args, Path(folder))}))


def soak(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    size_bytes = parse_byte_size("size", args.size)
    traffic_bytes = parse_byte_size("traffic", args.traffic)
    path = write_checkpoint(folder / "model", MODEL)
    num_blocks = parse_byte_size("pool", args.pool) // (BLOCK_SIZE * TOKEN_BYTES)
    options = {
        "model": str(path), "block_size": BLOCK_SIZE, "num_gpu_blocks_override": num_blocks,
        "max_model_len": min(LONGEST, num_blocks * BLOCK_SIZE),
    }  # fmt: skip
    model = load_model(EngineOptions(**options))
    tier = folder / "tier"
    tiers = None if args.without_tier else f"disk:{tier},size={size_bytes}"
    engine = connect(model, EngineOptions(**options, kv_tier=tiers))
    plain = connect(model, EngineOptions(**options))
    if tiers:
        engine.transfers.loads._prefill_rate = SlowPrefill()
        while not engine.transfers.stats().shelves[0].bytes_per_s:
            time.sleep(0.01)
    served = Served(engine, plain, args.check, args.aborts)
    lookout = Lookout(tier, served)
    lookout.start()
    began = time.monotonic()
    for request in requests_of(args, engine.max_model_len):
        served.serve(tokens_of(request), args.concurrent)
        if moved_bytes(engine) >= traffic_bytes or time.monotonic() - began > 60 * args.minutes:
            break
    served.finish()
    seconds = time.monotonic() - began
    lookout.end()
    engine.close()
    told = {
        "seconds": seconds,
        "requests": served.num_served,
        "aborted": dict(served.aborted),
        **lookout.memory(args.warm_up),
        "hit_rate": served.hit_rate,
        "checked": served.num_checked,
        "wrong": served.num_wrong,
    }
    if tiers:
        told |= of_tier(engine, max(lookout.most_bytes, bytes_in(tier)), size_bytes, served)
    if tiers and not args.aborts:
        told |= bests(args, engine, num_blocks, size_bytes, served.num_served)
    return told


def of_tier(engine: Engine, most_bytes: int, size_bytes: int, served: Served) -> dict[str, Any]:
    """What the tier held and did."""
    stats = engine.transfers.stats()
    [shelf] = stats.shelves
    return {
        "size_bytes": size_bytes,
        "most_bytes": most_bytes,
        "is_within": most_bytes <= size_bytes + slack_bytes(),
        "traffic_bytes": moved_bytes(engine),
        "stored_bytes": shelf.counts.bytes_stored,
        "loaded_bytes": shelf.counts.bytes_loaded,
        "from_tier": stats.num_tokens_loaded / served.num_asked,
        "endings": dict(stats.endings),
        "dropped": shelf.counts.frames_dropped,
        "rejected": dict(shelf.counts.rejected),
        "failures": dict(shelf.counts.failures),
    }


def requests_of(args: argparse.Namespace, max_model_len: int) -> Iterator[TracedRequest]:
    """Those of the trace that fit; the same ones each time."""
    requests = (of_prompt_alone(each) for each in find_trace(args.trace))
    return (each for each in requests if each.num_tokens <= max_model_len)


def slack_bytes() -> int:
    """Marker, lock and folders, which are no frames."""
    return 2 * 4096


def moved_bytes(engine: Engine) -> int:
    shelves = engine.transfers.stats().shelves
    return sum(each.counts.bytes_stored + each.counts.bytes_loaded for each in shelves)


def of_prompt_alone(request: TracedRequest) -> TracedRequest:
    """The same without its answer, of which one token is made."""
    known = min(request.num_known_tokens, request.num_prompt_tokens)
    return replace(request, num_output_tokens=1, num_known_tokens=known)


def bests(
    args: argparse.Namespace, engine: Engine, num_blocks: int, size_bytes: int, num_requests: int
) -> dict[str, float]:
    """Hit rates of what was served, in one pool of as many blocks as pool and tier hold."""
    [shelf] = engine.transfers.stats().shelves
    frame_bytes = shelf.counts.bytes_stored // max(1, shelf.counts.frames_stored)
    num_blocks += size_bytes // on_disk(frame_bytes)
    requests = list(islice(requests_of(args, engine.max_model_len), num_requests))
    references = References(BLOCK_SIZE, whole_blocks=False)
    for request in requests:
        references.add(request)
    one_pool = CacheManager(num_blocks, BLOCK_SIZE)
    return {
        "num_blocks": num_blocks,
        "lru_hit_rate": replay_cache(requests, one_pool, whole_blocks=False).hit_rate,
        "best_hit_rate": references.future().hit_rate(num_blocks),
    }


class Served:
    """Requests of a trace on their way through an engine, in order."""

    def __init__(
        self, engine: Engine, plain: Engine, check_every: int, num_aborts: int = 0
    ) -> None:
        """`num_aborts`: after so many of 100 steps a request is aborted, by chance."""
        self._engine = engine
        self._plain = plain
        self._check_every = check_every
        self._num_aborts = num_aborts
        self._random = random.Random(0)
        self._open: dict[str, list[int]] = {}
        self.num_served = 0
        self.num_asked = 0
        self.num_cached = 0
        self.num_checked = 0
        self.num_wrong = 0
        self.aborted = Counter[str]()
        """By where they were."""

    @property
    def hit_rate(self) -> float:
        return self.num_cached / max(1, self.num_asked)

    def serve(self, tokens: list[int], concurrent: int) -> None:
        """Begin with it once fewer than so many are open."""
        while len(self._open) >= concurrent:
            self._step()
        name = str(self.num_served)
        self.num_served += 1
        self._open[name] = tokens
        self._engine.add(self._engine.intake.request(name, tokens, self._sampling()))

    def finish(self) -> None:
        while self._open:
            self._step()

    def _sampling(self) -> SamplingParams:
        """Answers are longer where some are aborted in the middle of them."""
        return _SOME_TOKENS if self._num_aborts else _ONE_TOKEN

    def _step(self) -> None:
        for output in self._engine.step():
            if output.finished:
                self._take(output)
        if self._num_aborts and self._random.random() < self._num_aborts / 100:
            self._abort()

    def _take(self, output: RequestOutput) -> None:
        tokens = self._open.pop(output.request_id)
        self.num_asked += len(tokens)
        self.num_cached += output.num_cached_tokens
        if int(output.request_id) % self._check_every == 0:
            self.num_checked += 1
            found = output.outputs[0].token_ids
            self.num_wrong += found[:1] != answer(self._plain, tokens)

    def _abort(self) -> None:
        unfinished = self._engine._roster.unfinished()
        if unfinished:
            sequence = self._random.choice(unfinished)
            self.aborted[state_of(sequence)] += 1
            del self._open[sequence.request.request_id]
            self._engine.abort(sequence.request.request_id)


def state_of(sequence: Any) -> str:
    """Where a request is that has not ended."""
    load = sequence.awaited_load
    if load is not None and not load.is_done:
        return "load"
    if sequence.num_computed_tokens == 0:
        return "queue"
    return "decode" if sequence.output_token_ids else "prefill"


def answer(engine: Engine, tokens: list[int]) -> list[int]:
    """Computed, and nothing else."""
    engine.reset_prefix_cache()
    engine.add(engine.intake.request("check", tokens, _ONE_TOKEN))
    while True:
        for output in engine.step():
            return output.outputs[0].token_ids


def tokens_of(request: TracedRequest) -> list[int]:
    """The same for the same ids."""
    return list(islice(_tokens(request), request.num_prompt_tokens))


def _tokens(request: TracedRequest) -> Iterator[int]:
    for unit in request.unit_ids:
        yield from random.Random(unit).choices(range(_VOCABULARY), k=request.unit_size)
    own = random.Random(repr(request.unit_ids[-1:]) + str(request.num_prompt_tokens))
    while True:
        yield own.randrange(_VOCABULARY)


if __name__ == "__main__":
    main()
