"""A disk tier under much more traffic than it holds: bytes, memory, hits against the best there is.

    python benchmarks/tier_soak.py [--size 2GiB] [--traffic 20GiB] [--minutes 30] [--pool 192MiB]
        [--trace "synthetic:rag?..."] [--concurrent 8] [--check 50] [--folder PATH]

Serves a trace until so many bytes went to the tier and came from it, or so many minutes have
passed: a small random model with large keys and values (32 KiB a token), a pool that is too small,
and a tier that is too small as well. The engine is told that it computes slowly, so that its gate
opens; all else is as ever.

    bytes     of all files in the tier's folder, looked at all the time: the most there were
    memory    of the process, and its slope over the second half of the time
    hits      of the tokens that were asked for: from pool and tier, against an LRU cache of as many
              blocks in one pool, and against the best that knowing the future can do (Belady)
    wrong     of every `--check`-th answer, those that an engine without tiers gives otherwise

Prints one JSON line.
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
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import psutil

sys.path.append(str(Path(__file__).parent.parent / "tests"))

from checkpoints import Case, write_checkpoint
from pagoda.byte_size import parse_byte_size
from pagoda.cache import CacheManager
from pagoda.engine.build import connect, load_model
from pagoda.engine.core import Engine
from pagoda.engine.options import EngineOptions
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


class SlowPrefill(PrefillRate):
    """Of a machine on which a disk is worth asking."""

    def note(self, num_tokens: int, num_sequences: int, seconds: float) -> None:
        pass

    def seconds(self, num_tokens: int) -> float:
        return _TOKEN_S * num_tokens


class Lookout(threading.Thread):
    """Looks at the folder and at the process all the time."""

    def __init__(self, folder: Path) -> None:
        super().__init__(daemon=True)
        self._folder = folder
        self._process = psutil.Process()
        self._is_over = threading.Event()
        self.most_bytes = 0
        self.num_looks = 0
        self.resident: list[tuple[float, int]] = []

    def run(self) -> None:
        while not self._is_over.wait(_LOOK_S):
            self.most_bytes = max(self.most_bytes, bytes_in(self._folder))
            self.resident.append((time.monotonic(), self._process.memory_info().rss))
            self.num_looks += 1

    def end(self) -> None:
        self._is_over.set()
        self.join()

    def slope_bytes_per_s(self) -> float:
        """Of the second half, by least squares."""
        half = self.resident[len(self.resident) // 2 :]
        if len(half) < 2:
            return 0.0
        at, size = np.array(half, dtype=float).T
        return float(np.polyfit(at - at[0], size, 1)[0])


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
    engine = connect(model, EngineOptions(**options, kv_tier=f"disk:{tier},size={size_bytes}"))
    plain = connect(model, EngineOptions(**options))
    engine.transfers.loads._prefill_rate = SlowPrefill()
    while not engine.transfers.stats().shelves[0].bytes_per_s:
        time.sleep(0.01)
    lookout, served = Lookout(tier), Served(engine, plain, args.check)
    lookout.start()
    began = time.monotonic()
    requests = (of_prompt_alone(each) for each in find_trace(args.trace))
    for request in requests:
        if request.num_tokens <= engine.max_model_len:
            served.serve(request, args.concurrent)
        if moved_bytes(engine) >= traffic_bytes or time.monotonic() - began > 60 * args.minutes:
            break
    served.finish()
    seconds = time.monotonic() - began
    engine.close()
    lookout.end()
    [shelf] = engine.transfers.stats().shelves
    frame_bytes = shelf.counts.bytes_stored // max(1, shelf.counts.frames_stored)
    num_blocks += size_bytes // on_disk(frame_bytes)
    return {
        "size_bytes": size_bytes,
        "most_bytes": max(lookout.most_bytes, bytes_in(tier)),
        "is_within": max(lookout.most_bytes, bytes_in(tier)) <= size_bytes + slack_bytes(),
        "traffic_bytes": moved_bytes(engine),
        "stored_bytes": shelf.counts.bytes_stored,
        "loaded_bytes": shelf.counts.bytes_loaded,
        "num_looks": lookout.num_looks,
        "seconds": seconds,
        "requests": len(served.requests),
        "resident_bytes": lookout.resident[-1][1] if lookout.resident else None,
        "slope_mib_per_minute": lookout.slope_bytes_per_s() * 60 / 2**20,
        "num_blocks": num_blocks,
        "hit_rate": served.hit_rate,
        "from_tier": engine.transfers.stats().num_tokens_loaded / served.num_asked,
        **bests(served.requests, num_blocks),
        "endings": dict(engine.transfers.stats().endings),
        "dropped": shelf.counts.frames_dropped,
        "rejected": dict(shelf.counts.rejected),
        "failures": dict(shelf.counts.failures),
        "checked": served.num_checked,
        "wrong": served.num_wrong,
    }


def slack_bytes() -> int:
    """Marker, lock and folders, which are no frames."""
    return 2 * 4096


def moved_bytes(engine: Engine) -> int:
    [shelf] = engine.transfers.stats().shelves
    return shelf.counts.bytes_stored + shelf.counts.bytes_loaded


def of_prompt_alone(request: TracedRequest) -> TracedRequest:
    """The same without its answer, of which one token is made."""
    known = min(request.num_known_tokens, request.num_prompt_tokens)
    return replace(request, num_output_tokens=1, num_known_tokens=known)


def bests(requests: Sequence[TracedRequest], num_blocks: int) -> dict[str, float]:
    """Hit rates of what was served, in one pool of so many blocks."""
    references = References(BLOCK_SIZE, whole_blocks=False)
    for request in requests:
        references.add(request)
    one_pool = CacheManager(num_blocks, BLOCK_SIZE)
    return {
        "lru_hit_rate": replay_cache(requests, one_pool, whole_blocks=False).hit_rate,
        "best_hit_rate": references.future().hit_rate(num_blocks),
    }


class Served:
    """Requests of a trace on their way through an engine, in order."""

    def __init__(self, engine: Engine, plain: Engine, check_every: int) -> None:
        self._engine = engine
        self._plain = plain
        self._check_every = check_every
        self._open: dict[str, list[int]] = {}
        self.requests: list[TracedRequest] = []
        self.num_asked = 0
        self.num_cached = 0
        self.num_checked = 0
        self.num_wrong = 0

    @property
    def hit_rate(self) -> float:
        return self.num_cached / self.num_asked

    def serve(self, request: TracedRequest, concurrent: int) -> None:
        """Begin with it once fewer than so many are open."""
        while len(self._open) >= concurrent:
            self._step()
        tokens, name = tokens_of(request), str(len(self.requests))
        self.requests.append(request)
        self._open[name] = tokens
        self._engine.add(self._engine.intake.request(name, tokens, _ONE_TOKEN))

    def finish(self) -> None:
        while self._open:
            self._step()

    def _step(self) -> None:
        for output in self._engine.step():
            tokens = self._open.pop(output.request_id)
            self.num_asked += len(tokens)
            self.num_cached += output.num_cached_tokens
            if int(output.request_id) % self._check_every == 0:
                self.num_checked += 1
                self.num_wrong += output.outputs[0].token_ids != answer(self._plain, tokens)


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
