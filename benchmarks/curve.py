"""How near the curve of hit rates that a cache tells comes to full replays of each size.

    python benchmarks/curve.py TRACE [--num-blocks 5000] [--block-size 512] [--policy lru]
        [--sample 1024] [--requests N]

TRACE is what `pagoda replay` takes. The trace goes once through a cache of `--num-blocks` that has
a curve, which forgets nothing, and once through a cache of every other size and policy that the
curve tells of. Prints hit rates of both, their difference in points, and what the curve took of the
processor for each request; then one JSON line. Where a replay refuses requests, as too large for
so small a cache, the two are about other requests; such rows are marked.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from itertools import islice

from pagoda.cache import EVICTION_POLICIES, CacheManager
from pagoda.cache.block import BlockTable
from pagoda.cache.curve import HitRateCurve
from pagoda.cache.watcher import Lookup
from pagoda.replay.cache_replay import replay_cache
from pagoda.replay.find_trace import find_trace


class TimedCurve(HitRateCurve):
    """Adds up what it takes."""

    seconds = 0.0

    def looked_up(self, lookup: Lookup) -> None:
        start = time.thread_time()
        super().looked_up(lookup)
        self.seconds += time.thread_time() - start

    def freed(self, table: BlockTable) -> None:
        start = time.thread_time()
        super().freed(table)
        self.seconds += time.thread_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trace")
    parser.add_argument("--num-blocks", type=int, default=5000)
    parser.add_argument("--block-size", type=int, default=512)
    parser.add_argument("--policy", choices=sorted(EVICTION_POLICIES), default="lru")
    parser.add_argument("--sample", type=int, default=1024)
    parser.add_argument("--requests", type=int, help="the first of the trace; all of them if left")
    args = parser.parse_args()
    requests = list(islice(find_trace(args.trace), args.requests))
    curve = TimedCurve(
        args.num_blocks, args.block_size, args.policy, sample=args.sample, half_life=math.inf
    )
    cache = CacheManager(args.num_blocks, args.block_size, eviction=args.policy, watchers=[curve])
    replay_cache(requests, cache)
    microseconds = curve.seconds / len(requests) * 1e6
    print(f"{curve.sampling_rate:.1%} of blocks are followed; {microseconds:.0f} us a request")
    print("policy    size   blocks    curve   replay   points")
    rows = []
    for point in curve.points():
        one = CacheManager(point.num_blocks, args.block_size, eviction=point.policy)
        found = replay_cache(requests, one)
        told = point.hit_rate or 0.0
        points = (told - found.hit_rate) * 100
        mark = f"  {found.num_refused} refused" if found.num_refused else ""
        print(
            f"{point.policy:8} {point.multiple:5g} {point.num_blocks:8,} {told:8.1%} "
            f"{found.hit_rate:8.1%} {points:+8.2f}{mark}",
            flush=True,
        )
        rows.append([point.policy, point.multiple, told, found.hit_rate, found.num_refused])
    print(
        json.dumps(
            {
                "benchmark": "curve",
                "trace": args.trace,
                "num_blocks": args.num_blocks,
                "block_size": args.block_size,
                "sampling_rate": curve.sampling_rate,
                "microseconds_per_request": round(microseconds, 1),
                "rows": rows,
            }
        )
    )


if __name__ == "__main__":
    main()
