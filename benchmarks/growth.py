"""How the time of a step grows: with the context, with the batch, with the size of the pool.

    python benchmarks/growth.py [--model M] [--rounds 15]

The forward pass alone, one new token for each sequence, K and V random, blocks drawn at random
from the pool. Prints three Markdown tables, then one JSON line. With the context a step should
grow along a straight line, by the bytes of a token over the memory's speed, which is measured in
the same run.
"""

from __future__ import annotations

import argparse
import json
import time

import numpy as np
from decode_attention import batch_of

from pagoda.engine.build import load_model
from pagoda.engine.devices.machine import measure_limits
from pagoda.engine.options import EngineOptions
from pagoda.execution.cpu.executor import CPUExecutor
from pagoda.storage.cpu_storage import CPUStorage

BLOCK_SIZE = 16
CONTEXTS = (256, 512, 1024, 2048, 4096, 8000)
BATCHES = (1, 2, 4, 8, 16, 32, 64)
POOLS = (1_000, 4_000, 16_000)
POOL_BATCH, POOL_CONTEXT, BATCH_CONTEXT = 8, 1024, 256


class Growth:
    """One model, asked for steps of different sizes."""

    def __init__(self, model: str | None, rounds: int) -> None:
        self.model = load_model(EngineOptions(model=model, max_model_len=8192))
        self.spec = self.model.spec.cache_spec(BLOCK_SIZE, self.model.dtype)
        self._rounds = rounds

    def step_ms(self, num_sequences: int, context: int, num_blocks: int) -> float:
        """Milliseconds of the best of several steps."""
        storage = CPUStorage(self.spec, num_blocks)
        batch = batch_of(num_sequences, context, BLOCK_SIZE, num_blocks, 1)
        for layer in storage.layers:
            for block in batch.groups[0].block_tables.ravel().tolist():
                layer.blocks[block].normal_()
        executor = CPUExecutor(self.model.spec, self.model.weights, storage, 8192)
        times = []
        for _ in range(self._rounds):
            start = time.perf_counter()
            executor.forward(batch)
            times.append(time.perf_counter() - start)
        return min(times) * 1e3


def table(title: str, unit: str, rows: list[tuple[int, float]]) -> None:
    print(f"\n| {title} | {' | '.join(f'{value:,}' for value, _ in rows)} |")
    print("|---" * (len(rows) + 1) + "|")
    print(f"| {unit} | {' | '.join(f'{ms:.1f}' for _, ms in rows)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model")
    parser.add_argument("--rounds", type=int, default=15)
    args = parser.parse_args()
    growth = Growth(args.model, args.rounds)
    limits = measure_limits(growth.model.weights.dtype)
    by_context = [(c, growth.step_ms(1, c, 520)) for c in CONTEXTS]
    table("context of one sequence, tokens", "step, ms", by_context)
    by_batch = [(n, growth.step_ms(n, BATCH_CONTEXT, 1100)) for n in BATCHES]
    table(f"sequences of {BATCH_CONTEXT} tokens", "step, ms", by_batch)
    by_pool = [(n, growth.step_ms(POOL_BATCH, POOL_CONTEXT, n)) for n in POOLS]
    table(f"blocks in the pool, {POOL_BATCH} x {POOL_CONTEXT:,} tokens", "step, ms", by_pool)
    limits = limits.best_of(measure_limits(growth.model.weights.dtype))
    slope_us = np.polyfit([c for c, _ in by_context], [ms for _, ms in by_context], 1)[0] * 1e3
    least_us = growth.spec.block_bytes / BLOCK_SIZE / limits.read_bandwidth * 1e6
    print(
        f"\n{slope_us:.2f} us a token of context, {slope_us / least_us:.2f} times its "
        f"{growth.spec.block_bytes // BLOCK_SIZE:,} bytes at {limits.read_bandwidth / 1e9:.1f} GB/s"
    )
    print(
        json.dumps(
            {
                "context": by_context,
                "batch": by_batch,
                "pool": by_pool,
                "microseconds_per_token": slope_us,
                "read_bandwidth": limits.read_bandwidth,
            }
        )
    )


if __name__ == "__main__":
    main()
