"""The five workloads that engines are compared on, run through `LLM.generate`.

    python benchmarks/workloads.py [--workload single mixed ...] [--seed 0] [--repeat 3] [--model M]

Token ids are uniform in [100, 48000); outputs are forced to their length at temperature 0, so every
engine that is given the same draw does the same work. Each run starts with an empty prefix cache.
Prints a table, then one JSON line a workload.
"""

from __future__ import annotations

import argparse
import json
import random
import time

from pagoda import LLM, SamplingParams, __version__

Work = list[tuple[list[int], int]]
"""Prompt token ids, and how many tokens to generate."""


def draw(name: str, seed: int) -> Work:
    """The work of one workload; the same for the same seed."""
    source = random.Random(f"{name}/{seed}")

    def ids(count: int) -> list[int]:
        return [source.randrange(100, 48000) for _ in range(count)]

    match name:
        case "single":  # one stream: bound by reading the weights
            return [(ids(128), 128)]
        case "mixed":  # different lengths at once: continuous batching
            return [(ids(source.randint(64, 512)), source.randint(32, 128)) for _ in range(32)]
        case "shared":  # one system prompt, submitted at once
            prefix = ids(1024)
            return [(prefix + ids(64), 32) for _ in range(32)]
        case "long":  # one long prompt: bound by arithmetic
            return [(ids(4096), 64)]
        case "longbatch":  # long contexts: bound by reading K and V
            return [(ids(2048), 64) for _ in range(8)]
    raise SystemExit(f"no workload {name!r}; choose from {', '.join(NAMES)}")


NAMES = ("single", "mixed", "shared", "long", "longbatch")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workload", nargs="+", default=list(NAMES), choices=NAMES)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--model")
    args = parser.parse_args()
    llm = LLM(args.model, kv_cache_memory_bytes=2 * 2**30, max_model_len=8192)
    rows = []
    print(
        f"{'workload':<10} {'best s':>8} {'tokens/s':>9} {'prompt':>7} {'output':>7} {'cached':>7}"
    )
    for name in args.workload:
        work = draw(name, args.seed)
        runs = [measure(llm, work) for _ in range(args.repeat)]
        best = min(runs)
        prompt_tokens = sum(len(prompt) for prompt, _ in work)
        output_tokens = sum(count for _, count in work)
        rows.append(
            {
                "engine": "pagoda",
                "version": __version__,
                "workload": name,
                "seed": args.seed,
                "prompt_tokens": prompt_tokens,
                "output_tokens": output_tokens,
                "seconds": [round(seconds, 3) for seconds, _ in runs],
                "best_seconds": round(best[0], 3),
            }
        )
        print(
            f"{name:<10} {best[0]:>8.2f} {output_tokens / best[0]:>9.1f} {prompt_tokens:>7} "
            f"{output_tokens:>7} {best[1]:>7}",
            flush=True,
        )
    for row in rows:
        print(json.dumps(row))


def measure(llm: LLM, work: Work) -> tuple[float, int]:
    """Seconds for all of it, and prompt tokens that came from the cache."""
    llm.reset_prefix_cache()
    params = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for _, n in work]
    start = time.perf_counter()
    outputs = llm.generate([prompt for prompt, _ in work], params, use_tqdm=False)
    seconds = time.perf_counter() - start
    assert all(
        len(output.outputs[0].token_ids) == count
        for output, (_, count) in zip(outputs, work, strict=True)
    )
    return seconds, sum(output.num_cached_tokens for output in outputs)


if __name__ == "__main__":
    main()
