"""What a decode step costs beside the forward pass: microseconds by part.

    python benchmarks/step_overhead.py [--sequences 1 16 256] [--steps 200] [--repeat 5] [--stream]
        [--sampling NAME] [--threads N] [--eviction-policy density]

The engine is the real one, with the default model's tokenizer; in the executor's place stands one
that returns prepared logits at once. So what is timed is everything of a step but the model:

    schedule   decide who computes what, and reserve blocks
    prepare    the arrays of the step
    sample     logits to tokens, at the speed of memory at best: 4 bytes a token of the vocabulary
    conclude   append tokens, publish blocks, stop strings, finish
    collect    the rest: text, outputs, and the step's own lines

`--stream` asks for outputs after every step, as a server's callers do; otherwise for the last
alone, as `LLM.generate` does. Each figure is the median step of the best repetition. Prints a
table, then one JSON line.
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
from pagoda.cache.evictions import DEFAULT_POLICY
from pagoda.cache.window import FULL_ATTENTION
from pagoda.engine.core import Engine
from pagoda.engine.intake import Intake
from pagoda.engine.retention_rules import RetentionRules
from pagoda.engine.runner import Runner
from pagoda.engine.sampling.cpu_sampler import CPUSampler
from pagoda.execution.batch import Batch
from pagoda.models.locate import locate
from pagoda.models.tokenizer import Tokenizer
from pagoda.request import SamplingParams
from pagoda.scheduling import Scheduler

VOCAB_SIZE = 49152
BLOCK_SIZE = 16
PROMPT_TOKENS = 128
PARTS = ("schedule", "prepare", "sample", "conclude", "collect")
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
        rows[count] = {part: round(best[part] * 1e6, 1) for part in (*PARTS, "all")}
        figures = " ".join(f"{rows[count][part]:9.1f}" for part in (*PARTS, "all"))
        rest = rows[count]["all"] - rows[count]["sample"]
        print(f"{count:9} {figures} {rest:15.1f}", flush=True)
    print(
        json.dumps(
            {
                "benchmark": "step_overhead",
                "sampling": args.sampling,
                "stream": args.stream,
                "threads": args.threads,
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

    def wrap(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any) -> Any:
            start = time.perf_counter()
            result = function(*args)
            self.seconds[name] += time.perf_counter() - start
            return result

        return timed


def measure(
    tokenizer: Tokenizer, logits: torch.Tensor, args: argparse.Namespace
) -> dict[str, float]:
    """Median seconds of a step by part, while all sequences decode."""
    engine = engine_over(tokenizer, logits, args.steps, args.eviction_policy)
    watch = Watch()
    engine.scheduler.schedule = watch.wrap("schedule", engine.scheduler.schedule)  # type: ignore[method-assign]
    engine._conclude = watch.wrap("conclude", engine._conclude)  # type: ignore[method-assign]
    engine._runner.execute = watch.wrap("prepare", engine._runner.execute)  # type: ignore[method-assign]
    step = watch.wrap("all", engine.step)
    engine._sampler.begin = watch.wrap("sample", engine._sampler.begin)  # type: ignore[method-assign]
    params = SamplingParams(max_tokens=args.steps + 2, ignore_eos=True, **SAMPLING[args.sampling])
    for number in range(len(logits)):
        prompt = [number % 1000 + 100, *range(1, PROMPT_TOKENS)]
        request = engine.intake.request(str(number), prompt, params)
        engine.add(request, streams=args.stream)
    engine.step()  # the prompts
    steps = []
    gc.collect()
    gc.disable()
    for _ in range(args.steps):
        watch.seconds.clear()
        step()
        steps.append(dict(watch.seconds))
    gc.enable()
    found = {part: statistics.median(s[part] for s in steps) for part in (*PARTS[:4], "all")}
    found["collect"] = found["all"] - sum(found[part] for part in PARTS[:4])
    return found


def engine_over(tokenizer: Tokenizer, logits: torch.Tensor, steps: int, policy: str) -> Engine:
    """An engine that all sequences fit into."""
    longest = PROMPT_TOKENS + steps + 2 * BLOCK_SIZE
    num_blocks = len(logits) * -(-longest // BLOCK_SIZE) + 1
    cache = CacheManager(num_blocks, BLOCK_SIZE, eviction=policy)
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
