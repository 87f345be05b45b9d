"""How policies of eviction do against LRU: many traces, three sizes of pool each.

    python benchmarks/eviction.py [--policies density] [--seeds 0,1] [--trace FILE ...]

Each trace goes through the cache alone (`pagoda.replay.cache_replay`). Prints the hit rate of LRU
and the points that each policy gains or loses, then the worst and the mean of each, and one JSON
line. `--trace` adds traces that `pagoda replay` reads, with the pools of `--num-blocks`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from eviction_workloads import Workload, workloads

from pagoda.cache import EVICTION_POLICIES, CacheManager
from pagoda.replay.cache_replay import replay_cache
from pagoda.replay.find_trace import find_trace
from pagoda.replay.trace import Trace

POOLS = (500, 2000, 5000, 10000, 20000, 30000)


def hit_rate(trace: Trace, block_size: int, num_blocks: int, policy: str) -> float:
    cache = CacheManager(num_blocks, block_size, eviction=policy)
    return replay_cache(trace, cache).hit_rate


def tried(args: argparse.Namespace) -> Iterator[Workload]:
    for path in args.trace:
        trace = find_trace(path)
        yield Workload(trace, trace.unit_size, tuple(args.num_blocks))
    yield from workloads(args.seeds)


def compare(work: Workload, num_blocks: int, policies: Sequence[str]) -> dict[str, float]:
    """The hit rate of LRU in percent, and the points that others gain."""
    least = hit_rate(work.trace, work.block_size, num_blocks, "lru")
    row = {"lru": 100 * least}
    for policy in policies:
        found = hit_rate(work.trace, work.block_size, num_blocks, policy)
        row[policy] = 100 * (found - least)
    return row


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",") if part]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--policies", default="density", help=f"of {', '.join(EVICTION_POLICIES)}")
    parser.add_argument("--seeds", type=numbers, default=[0, 1])
    parser.add_argument("--trace", nargs="*", default=[])
    parser.add_argument("--num-blocks", type=numbers, default=POOLS)
    args = parser.parse_args()
    policies = args.policies.split(",")
    print(f"| trace | block | blocks | lru | {' | '.join(policies)} |")
    print(f"|{'---|' * (4 + len(policies))}")
    rows = []
    for work in tried(args):
        name = Path(work.trace.name).name
        for num_blocks in work.pools:
            row = compare(work, num_blocks, policies)
            rows.append((name, num_blocks, row))
            gains = " | ".join(f"{row[policy]:+.2f}" for policy in policies)
            begin = f"| {name} | {work.block_size} | {num_blocks:,}"
            print(f"{begin} | {row['lru']:.1f}% | {gains} |", flush=True)
    summary = {}
    for policy in policies:
        gains = [row[policy] for _, _, row in rows]
        worst, where = min((row[policy], f"{name}, {size:,}") for name, size, row in rows)
        mean = sum(gains) / len(gains)
        print(f"\n{policy}: {len(gains)} cells, worst {worst:+.2f} ({where}), mean {mean:+.2f}")
        summary[policy] = {"cells": len(gains), "worst": worst, "where": where, "mean": mean}
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
