"""Requests on which a policy of eviction may do worse than LRU, made up from seeds.

conversations   families of `pagoda.replay.synthetic`, with other numbers and seeds
chains          items of some blocks, drawn one after another: loops, scans, Zipf's law, recency
                alone, phases of several of these
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, count

from pagoda.replay.faults import Faults
from pagoda.replay.recorded import RecordedSetting
from pagoda.replay.synthetic import UNIT_SIZE, find_synthetic
from pagoda.replay.trace import Trace, TracedRequest

_MASK = 2**64 - 1


@dataclass(frozen=True)
class Workload:
    """A trace, and the sizes of blocks and pools that it is tried with."""

    trace: Trace
    block_size: int
    pools: tuple[int, ...]


class Chains:
    """Each request is an item's blocks and half a block that nobody else has; see `Trace`."""

    unit_size = UNIT_SIZE
    faults = Faults()
    recorded: RecordedSetting | None = None

    def __init__(self, name: str, items: Sequence[int], num_blocks: int) -> None:
        """`items`: which one each request asks for. `num_blocks`: of each item."""
        self.name = name
        self.num_requests = len(items)
        self._items = items
        self._num_blocks = num_blocks

    def __iter__(self) -> Iterator[TracedRequest]:
        size = self._num_blocks * UNIT_SIZE
        for number, item in enumerate(self._items):
            units = [hash((item, place, 1)) & _MASK for place in range(self._num_blocks)]
            yield TracedRequest(float(number), size + UNIT_SIZE // 2, 1, units, UNIT_SIZE, size)


def loop(num_items: int, rounds: int) -> list[int]:
    """All items one after another, again and again."""
    return list(range(num_items)) * rounds


def zipf(num_items: int, num: int, power: float, seed: int, drift: int = 0) -> list[int]:
    """The k-th item as often as 1 / k^power; after `drift` draws each is the next one's place."""
    weights = list(accumulate(1 / (rank + 1) ** power for rank in range(num_items)))
    drawn = random.Random(seed).choices(range(num_items), cum_weights=weights, k=num)
    return [item + number // drift for number, item in enumerate(drawn)] if drift else drawn


def recency(num: int, share: float, distance: float, seed: int) -> list[int]:
    """So large a share asks for what came some draws ago, exponentially; the rest is new."""
    source, items, new = random.Random(seed), list[int](), count(10**9 * (seed + 1))
    for _ in range(num):
        back = int(source.expovariate(1 / distance)) + 1
        is_old = source.random() < share and back <= len(items)
        items.append(items[-back] if is_old else next(new))
    return items


def scans(rounds: int, seed: int) -> list[int]:
    """600 draws of 800 items, then 400 that nobody asks for again."""
    source, items, new = random.Random(seed), list[int](), count(10**6)
    for _ in range(rounds):
        items += [source.randrange(800) for _ in range(600)]
        items += [next(new) for _ in range(400)]
    return items


def phases(seed: int) -> list[int]:
    """Popular items, recent ones, a loop, other recent ones, and the first two again."""
    popular, recent = zipf(3000, 9000, 1.0, seed), recency(9000, 0.6, 400, seed)
    others = recency(9000, 0.5, 900, seed + 1)
    return popular + recent + loop(900, 9) + others + popular[:5000] + recent[:5000]


def workloads(seeds: Sequence[int]) -> Iterator[Workload]:
    """All that are tried."""
    for seed in seeds:
        yield from _conversations(seed)
        yield from _chains(seed)


def _conversations(seed: int) -> Iterator[Workload]:
    small, middle, large = (100, 500, 2000), (500, 2000, 8000), (2000, 8000, 32000)
    for family, block_size, pools in (
        ("chat?requests=2000", 16, middle),
        ("chat?requests=2000&rate=5", 16, middle),
        ("chat?requests=600&message=1000&answer=1000", 16, large),
        ("chat?requests=800&message=2000&answer=500&turns=6", 16, large),
        ("chat?requests=6000&message=3000&answer=500&turns=4&rate=3", 512, middle),
        ("chat?requests=1500&system=0&turns=8&pause=20&long_share=0", 16, middle),
        ("chat?requests=4000&system=0&message=400&answer=400&turns=3&pause=60&long_share=0&rate=2",
         64, middle),
        ("chat?requests=4000&message=500&answer=300&turns=4&pause=10&long_pause=1500&long_share=0.4",
         64, middle),
        ("chat?requests=3000&turns=2&rate=20&pause=5", 16, middle),
        ("agents?requests=1000&rate=0.5", 64, middle),
        ("agents?requests=5000&rate=1", 512, small),
        ("agents?requests=4000&rate=4&turns=5", 128, middle),
        ("rag?requests=3000", 64, middle),
        ("rag?requests=5000&documents=500&chosen=1", 64, middle),
        ("rag?requests=5000&documents=60&chosen=1&document=4000", 512, small),
        ("system?requests=3000", 64, small),
    ):  # fmt: skip
        trace = find_synthetic(f"synthetic:{family}&seed={seed}")
        yield Workload(trace, block_size, pools)


def _chains(seed: int) -> Iterator[Workload]:
    small, middle = (50, 200, 800), (200, 1000, 4000)
    for name, items, num_blocks, pools in (
        ("loop of 1,100", loop(1100, 25), 1, (200, 1000)),
        ("loop of 300, 4 blocks each", loop(300, 30), 4, (200, 1000)),
        ("Zipf 0.8", zipf(20000, 30000, 0.8, seed), 1, middle),
        ("Zipf 1.1, 4 blocks each", zipf(5000, 12000, 1.1, seed), 4, middle),
        ("Zipf 1.0 that drifts", zipf(3000, 30000, 1.0, seed, drift=20), 1, small),
        ("Zipf 1.0 that drifts fast", zipf(3000, 30000, 1.0, seed, drift=2), 1, small),
        ("recency, 500", recency(30000, 0.5, 500, seed), 1, small),
        ("recency, 100, 10 blocks each", recency(6000, 0.5, 100, seed), 10, middle),
        ("recency, 60, 30 blocks each", recency(3000, 0.5, 60, seed), 30, middle),
        ("scans", scans(30, seed), 1, middle),
        ("phases", phases(seed), 1, middle),
    ):
        yield Workload(Chains(f"{name}, seed {seed}", items, num_blocks), UNIT_SIZE, pools)
