"""What a decode step costs beside the forward pass: microseconds by part.

    python benchmarks/step_overhead.py [--sequences 1 16 256] [--steps 200] [--repeat 5] [--stream]
        [--sampling NAME] [--threads N] [--answer N] [--watchers NAME ...]
        [--eviction-policy density]

The engine is the real one, with the default model's tokenizer; in the executor's place stands one
that returns prepared logits at once. So what is timed is everything of a step but the model:

    schedule   decide who computes what, and reserve blocks
    prepare    the arrays of the step
    sample     logits to tokens, at the speed of memory at best: 4 bytes a token of the vocabulary
    conclude   append tokens, publish blocks, stop strings, finish
    collect    the rest: text, outputs, and the step's own lines

`--stream` asks for outputs after every step, as a server's callers do; otherwise for the last
alone, as `LLM.generate` does. Each figure is the median step of the best repetition.

With `--answer` a sequence ends after so many tokens and another takes its place, which begins with
the same 64 tokens; figures are then means, since what comes and goes is a part of few steps, and
the cache is full, so that blocks are evicted. `--watchers` are those of the cache (`misses`,
`curve`, `lives`), which a server has all of: what they take, within the parts above, is told beside
them, in time of the processor. Prints a table, then one JSON line.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numba
import torch

from pagoda.cache import EVICTION_POLICIES, CacheManager
from pagoda.cache.curve import HitRateCurve
from pagoda.cache.evictions import DEFAULT_POLICY
from pagoda.cache.explainer import MissExplainer
from pagoda.cache.watcher import CacheWatcher
from pagoda.cache.window import FULL_ATTENTION
from pagoda.engine.block_lives import BlockLives
from pagoda.engine.core import Engine
from pagoda.engine.intake import Intake
from pagoda.engine.retention_rules import RetentionRules
from pagoda.engine.runner import Runner
from pagoda.engine.sampling.cpu_sampler import CPUSampler
from pagoda.execution.batch import Batch
from pagoda.models.locate import locate
from pagoda.models.tokenizer import Tokenizer
from pagoda.request import Request, SamplingParams
from pagoda.scheduling import Scheduler

VOCAB_SIZE = 49152
BLOCK_SIZE = 16
PROMPT_TOKENS = 128
SHARED_TOKENS = 64
WATCHERS: dict[str, Callable[[int], CacheWatcher]] = {
    "misses": lambda num_blocks: MissExplainer(num_blocks, BLOCK_SIZE),
    "curve": lambda num_blocks: HitRateCurve(num_blocks, BLOCK_SIZE),
    "lives": lambda num_blocks: BlockLives(),
}
"""Each for a cache of so many blocks."""
PARTS = ("schedule", "prepare", "sample", "conclude", "collect")
TOLD = ("looked_up", "stored", "reused", "freed", "evicted")
"""What a cache tells its watchers in a step."""
SAMPLING: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "temperature": {},
    "top_k": {"top_k": 50},
    "top_p": {"top_p": 0.95},
    "min_p": {"min_p": 0.05},
    "wide_top_p": {"top_p": 0.95, "temperature": 3.0},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sequences", type=int, nargs="+", default=[1, 16, 256])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--sampling", choices=list(SAMPLING), default="greedy")
    parser.add_argument(
        "--eviction-policy", choices=list(EVICTION_POLICIES), default=DEFAULT_POLICY
    )
    parser.add_argument("--stream", action="store_true")
    parser.add_argument("--answer", type=int, help="tokens after which a sequence is replaced")
    parser.add_argument("--watchers", choices=list(WATCHERS), nargs="*", default=[])
    parser.add_argument("--threads", type=int, default=numba.get_num_threads())
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    numba.set_num_threads(args.threads)
    tokenizer = Tokenizer(locate(None))
    rows = {}
    head = " ".join(f"{part:>9}" for part in PARTS)
    print(f"sequences {head} {'all':>9}  without sample   us a step", flush=True)
    for count in args.sequences:
        logits = prepared_logits(count)
        runs = [measure(tokenizer, logits, args) for _ in range(args.repeat)]
        best = min(runs, key=lambda run: run["all"])
        rows[count] = {part: round(seconds * 1e6, 1) for part, seconds in best.items()}
        figures = " ".join(f"{rows[count][part]:9.1f}" for part in (*PARTS, "all"))
        rest = rows[count]["all"] - rows[count]["sample"]
        watched = "".join(f"  {name} {rows[count][name]:.1f}" for name in args.watchers)
        print(f"{count:9} {figures} {rest:15.1f}{watched}", flush=True)
    print(
        json.dumps(
            {
                "benchmark": "step_overhead",
                "sampling": args.sampling,
                "stream": args.stream,
                "threads": args.threads,
                "answer": args.answer,
                "watchers": args.watchers,
                "microseconds_per_step": rows,
            }
        )
    )


def prepared_logits(num_rows: int) -> torch.Tensor:
    """[num_rows, VOCAB_SIZE]: a few likely tokens and a long tail, as a trained model has them."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(num_rows, VOCAB_SIZE, generator=generator) * 2
    likely = torch.randint(VOCAB_SIZE, (num_rows, 20), generator=generator)
    return logits.scatter_add_(1, likely, 10 + 4 * torch.rand(num_rows, 20, generator=generator))


class FakeExecutor:
    """Returns the same logits at once, whatever the batch."""

    def __init__(self, logits: torch.Tensor) -> None:
        self._logits = logits

    def forward(self, batch: Batch) -> torch.Tensor:
        return self._logits[: len(batch.logit_rows)]


class Watch:
    """Adds up how long the functions that it wraps take."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)

    def wrap(
        self,
        name: str,
        function: Callable[..., Any],
        clock: Callable[[], float] = time.perf_counter,
    ) -> Callable[..., Any]:
        def timed(*args: Any) -> Any:
            start = clock()
            result = function(*args)
            self.seconds[name] += clock() - start
            return result

        return timed


def measure(
    tokenizer: Tokenizer, logits: torch.Tensor, args: argparse.Namespace
) -> dict[str, float]:
    """Seconds of a step by part while all sequences decode: the median, of `--answer` the mean."""
    watch = Watch()
    engine = engine_over(tokenizer, logits, args, watch)
    engine.scheduler.schedule = watch.wrap("schedule", engine.scheduler.schedule)  # type: ignore[method-assign]
    engine._conclude = watch.wrap("conclude", engine._conclude)  # type: ignore[method-assign]
    engine._runner.execute = watch.wrap("prepare", engine._runner.execute)  # type: ignore[method-assign]
    step = watch.wrap("all", engine.step)
    engine._sampler.begin = watch.wrap("sample", engine._sampler.begin)  # type: ignore[method-assign]
    load = Load(engine, len(logits), args)
    load.fill()
    engine.step()  # the prompts
    steps = []
    gc.collect()
    gc.disable()
    for _ in range(args.steps):
        load.fill()
        watch.seconds.clear()
        step()
        steps.append(dict(watch.seconds))
    gc.enable()
    typical = statistics.median if args.answer is None else statistics.fmean
    found = {part: typical(s.get(part, 0.0) for s in steps) for part in (*PARTS[:4], "all")}
    found["collect"] = found["all"] - sum(found[part] for part in PARTS[:4])
    for name in args.watchers:
        found[name] = statistics.fmean(s.get(name, 0.0) for s in steps)
    return found


class Load:
    """So many sequences at a time."""

    def __init__(self, engine: Engine, count: int, args: argparse.Namespace) -> None:
        self._engine = engine
        self._count = count
        self._args = args
        self._num_asked = 0

    def fill(self) -> None:
        """Others come in place of those that have ended."""
        stats = self._engine.scheduler.stats()
        for _ in range(self._count - stats.num_running - stats.num_waiting):
            number = self._num_asked
            self._num_asked += 1
            self._engine.add(self._request(number), streams=self._args.stream)

    def _request(self, number: int) -> Request:
        length = self._args.steps + 2
        if self._args.answer is not None:  # the first ones end one after the other
            length = self._args.answer
            length = (
                max(2, length * (number + 1) // self._count) if number < self._count else length
            )
        sampling = SAMPLING[self._args.sampling]
        params = SamplingParams(max_tokens=length, ignore_eos=True, **sampling)
        prompt = [number % 1000 + 100, *range(1, PROMPT_TOKENS)]
        if self._args.answer is not None:
            prompt[0], prompt[SHARED_TOKENS] = 100, 1000 + number
        return self._engine.intake.request(str(number), prompt, params)


def engine_over(
    tokenizer: Tokenizer, logits: torch.Tensor, args: argparse.Namespace, watch: Watch
) -> Engine:
    """An engine that all sequences fit into, and nothing else."""
    longest = PROMPT_TOKENS + (args.answer or args.steps) + 2 * BLOCK_SIZE
    num_blocks = len(logits) * -(-longest // BLOCK_SIZE) + 1
    watchers = {name: WATCHERS[name](num_blocks) for name in args.watchers}
    for name, watcher in watchers.items():
        for told in TOLD:
            setattr(watcher, told, watch.wrap(name, getattr(watcher, told), time.thread_time))
    cache = CacheManager(
        num_blocks, BLOCK_SIZE, eviction=args.eviction_policy, watchers=tuple(watchers.values())
    )
    scheduler = Scheduler(
        cache,
        max_num_batched_tokens=len(logits) * PROMPT_TOKENS,
        max_num_seqs=len(logits),
        max_model_len=longest,
    )
    return Engine(
        model_name="none",
        max_model_len=longest,
        tokenizer=tokenizer,
        intake=Intake(
            tokenizer,
            vocab_size=VOCAB_SIZE,
            max_model_len=longest,
            seed=0,
            retention=RetentionRules(FULL_ATTENTION, 16, longest, takes_requests=False),
        ),
        scheduler=scheduler,
        runner=Runner(FakeExecutor(logits)),
        sampler=CPUSampler(),
    )


if __name__ == "__main__":
    main()
