"""Decoding behind windows: the time of a step beside the bytes that it reads.

    python benchmarks/windows.py [--context 4096] [--window 256] [--sequences 8] [--rounds 3]

The default model's weights, where no layer, every second one or all see a window: other models,
and as much work. Sequences are filled to the context and then decode side by side. Told beside the
time of a step: the cache's blocks that are held, and the bytes of weights and of K and V that a
step reads, as a share of those without windows.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from typing import Any

import numpy as np

from pagoda.engine.build import Model, connect, load_model
from pagoda.engine.core import Engine
from pagoda.engine.options import EngineOptions
from pagoda.request import SamplingParams

KINDS = ("none", "every second", "all")
_NUM_TOKENS = 33


def with_windows(model: Model, kind: str, window: int) -> Model:
    """The same weights, where layers see but windows."""
    sees = {"none": lambda n: None, "every second": lambda n: window if n % 2 else None,
            "all": lambda n: window}[kind]  # fmt: skip
    layers = tuple(
        replace(layer, attention=replace(layer.attention, sliding_window=sees(number)))
        for number, layer in enumerate(model.spec.layers)
    )
    loaded: Any = replace(model.loaded, spec=replace(model.spec, layers=layers))  # type: ignore[type-var]
    return replace(model, loaded=loaded)


def engine_of(model: Model, args: argparse.Namespace) -> Engine:
    """An engine whose pool holds the sequences."""
    options = EngineOptions(quantization="none", max_num_batched_tokens=512)
    longest = args.context + _NUM_TOKENS
    size = model.loaded.size(replace(options, num_gpu_blocks_override=4000), longest)
    num_blocks = args.sequences * size.capacity.spec.num_blocks(longest)
    own = replace(model, max_model_len=longest)
    return connect(own, replace(options, num_gpu_blocks_override=num_blocks))


def fill(engine: Engine, prompts: list[list[int]], max_tokens: int) -> None:
    """A request for each prompt, whose blocks are found again the second time."""
    params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
    for number, prompt in enumerate(prompts):
        engine.add(engine.intake.request(str(number), prompt, params))


def step_seconds(engine: Engine, args: argparse.Namespace) -> tuple[float, int]:
    """Seconds of the quickest decoding steps of all sequences, the median of a third of them; and
    blocks held then."""
    rng = np.random.default_rng(0)
    prompts = [rng.integers(1000, 20000, args.context).tolist() for _ in range(args.sequences)]
    fill(engine, prompts, 1)
    while engine.has_unfinished:
        engine.step()
    fill(engine, prompts, _NUM_TOKENS)
    seconds, held = [], 0
    while engine.has_unfinished:
        started = time.perf_counter()
        before = engine.scheduler.stats().num_computed_tokens
        engine.step()
        taken = time.perf_counter() - started
        if engine.scheduler.stats().num_computed_tokens - before == args.sequences:
            seconds.append(taken)
            stats = engine.scheduler.cache.stats()
            held = max(held, stats.num_blocks - stats.num_free_blocks)
    engine.reset_prefix_cache()
    quick = sorted(seconds)[: max(1, len(seconds) // 3)]
    return float(np.median(quick)), held


def main() -> None:
    """Measure in turn, the best of some rounds."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--context", type=int, default=4096)
    parser.add_argument("--window", type=int, default=256)
    parser.add_argument("--sequences", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    model = load_model(EngineOptions(quantization="none"))
    engines = {kind: engine_of(with_windows(model, kind, args.window), args) for kind in KINDS}
    best = {kind: (float("inf"), 0) for kind in KINDS}
    for _ in range(args.rounds):
        for kind, engine in engines.items():
            best[kind] = min(best[kind], step_seconds(engine, args))
    weights = model.held.read_bytes
    print(f"{args.sequences} × {args.context:,} tokens, windows of {args.window}")
    print(
        "| windows | ms a step | of none's | blocks held | bytes read, of none's | K and V alone |"
    )
    read = {}
    for kind in engines:
        spec = with_windows(model, kind, args.window).spec.cache_spec(16, model.dtype)
        own = sum(layer.read_bytes(args.context) for layer in spec.layers)
        read[kind] = args.sequences * own
        share = (weights + read[kind]) / (weights + read["none"])
        seconds, held = best[kind]
        print(
            f"| {kind} | {seconds * 1e3:.2f} | {seconds / best['none'][0]:.2f} | {held:,} "
            f"| {share:.2f} | {read[kind] / read['none']:.2f} |"
        )


if __name__ == "__main__":
    main()
