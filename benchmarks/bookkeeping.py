"""What the cache's bookkeeping costs a block, and that it does not grow with the pool.

    python benchmarks/bookkeeping.py [--blocks 1000 10000 100000 1000000] [--repeat 5]
        [--eviction-policy lru]

For each pool size, sequences of 8 blocks are taken through the cache until every block of the
pool has been touched, a bounded number of them timed:

    allocate   reserve the blocks of a new sequence, and publish them
    free       let go of a sequence, its blocks stay findable
    match      look up and hold a sequence that is cached
    evict      reserve from a pool in which every block is cached

Prints a table of million blocks per second (best of --repeat), then one JSON line.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from collections.abc import Callable, Iterable

from pagoda.cache import EVICTION_POLICIES, BlockTable, CacheManager

BLOCK_SIZE = 16
BLOCKS_PER_SEQUENCE = 8
MOST_TIMED = 4_000
"""Sequences that are timed; the rest of the pool is filled all the same."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--blocks", type=int, nargs="+", default=[10**3, 10**4, 10**5, 10**6])
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--eviction-policy", choices=list(EVICTION_POLICIES), default="lru")
    args = parser.parse_args()
    rows = {}
    print(
        f"{'blocks':>10} {'allocate':>9} {'free':>9} {'match':>9} {'evict':>9}   million blocks/s"
    )
    for num_blocks in args.blocks:
        runs = [measure(num_blocks, args.eviction_policy) for _ in range(args.repeat)]
        rows[num_blocks] = {name: max(run[name] for run in runs) for name in runs[0]}
        figures = " ".join(f"{rate / 1e6:9.3f}" for rate in rows[num_blocks].values())
        print(f"{num_blocks:>10,} {figures}", flush=True)
    print(json.dumps({"benchmark": "bookkeeping", "blocks_per_second": rows}))


def measure(num_blocks: int, policy: str) -> dict[str, float]:
    """Blocks per second of each operation on a pool of `num_blocks`, in a fresh cache."""
    cache = CacheManager(num_blocks, BLOCK_SIZE, eviction=policy)
    count = num_blocks // BLOCKS_PER_SEQUENCE
    length = BLOCKS_PER_SEQUENCE * BLOCK_SIZE
    prompts = [range(i * length, (i + 1) * length) for i in range(2 * count)]
    old, new = prompts[:count], prompts[count:]
    tables = [cache.open() for _ in old]
    again = [cache.open() for _ in old]
    fresh = [cache.open() for _ in new]
    for prompt, table in zip(old, again, strict=True):
        cache.match(table, prompt)  # hash once, outside the timing, as a request is hashed once
    for prompt, table in zip((*old, *new), (*tables, *fresh), strict=True):
        cache.match(table, prompt)

    def allocate(table: BlockTable, prompt: range) -> None:
        cache.reserve(table, 0, length)
        cache.commit(table, prompt, length)

    def hold(table: BlockTable, prompt: range) -> None:
        cache.acquire(table, prompt, cache.match(table, prompt))

    def free(table: BlockTable, prompt: range) -> None:
        cache.free(table)

    rates = {
        "allocate": timed(allocate, zip(tables, old, strict=True)),
        "free": timed(free, zip(tables, old, strict=True)),
        "match": timed(hold, zip(again, old, strict=True)),
    }
    for table in again:
        cache.free(table)
    rates["evict"] = timed(allocate, zip(fresh, new, strict=True))
    assert cache.stats().evictions >= count * BLOCKS_PER_SEQUENCE
    return rates


def timed(
    operation: Callable[[BlockTable, range], None], work: Iterable[tuple[BlockTable, range]]
) -> float:
    """Blocks per second over the last sequences of `work`; all of it is done."""
    items = list(work)
    untimed, counted = items[:-MOST_TIMED], items[-MOST_TIMED:]
    for table, prompt in untimed:
        operation(table, prompt)
    gc.collect()
    gc.disable()
    start = time.perf_counter()
    for table, prompt in counted:
        operation(table, prompt)
    seconds = time.perf_counter() - start
    gc.enable()
    return len(counted) * BLOCKS_PER_SEQUENCE / seconds


if __name__ == "__main__":
    main()
