"""Whose prefix is on its way has a seat and its blocks, as if it ran."""

from __future__ import annotations

from fake_model import request

from pagoda.cache import BlockTable, CacheManager, PrefixMatch
from pagoda.scheduling import Scheduler, Sequence
from pagoda.scheduling.prefix_load import PrefixLoad

SIZE = 4


class PendingLoad:
    """A prefix that never comes, and holds blocks meanwhile."""

    def __init__(self, cache: CacheManager, num_blocks: int) -> None:
        self._cache = cache
        self.table: BlockTable | None = cache.open()
        self.gated = None
        assert cache.reserve(self.table, 0, num_blocks * SIZE) is not None

    @property
    def is_done(self) -> bool:
        return self.table is None

    def abandon(self) -> None:
        if self.table is not None:
            self._cache.free(self.table)
            self.table = None


class PendingLoads:
    """Begins one for whoever asks."""

    def __init__(self, cache: CacheManager, num_blocks: int) -> None:
        self._cache, self._num_blocks = cache, num_blocks
        self.begun: list[tuple[Sequence, PendingLoad]] = []

    def begin(self, sequence: Sequence, match: PrefixMatch) -> PrefixLoad:
        self.begun.append((sequence, PendingLoad(self._cache, self._num_blocks)))
        return self.begun[-1][1]

    def make_room(self, table: BlockTable) -> bool:
        return False

    def give_way(self, table: BlockTable) -> bool:
        return False

    def start_over(self) -> None:
        self.begun.clear()


def crowd(num_blocks: int, num_seqs: int) -> tuple[Scheduler, PendingLoads]:
    """Ten requests of 16 tokens, of whose prefixes a block each is held at once."""
    cache = CacheManager(num_blocks, SIZE)
    loads = PendingLoads(cache, 1)
    scheduler = Scheduler(
        cache, max_num_batched_tokens=64, max_num_seqs=num_seqs, max_model_len=32, loads=loads
    )
    for number in range(10):
        scheduler.add(request(str(number), [number % 5] * 16, arrival_time=number))
    return scheduler, loads


def test_no_more_load_than_there_are_seats() -> None:
    scheduler, loads = crowd(num_blocks=200, num_seqs=3)
    for _ in range(4):
        assert not scheduler.schedule().sequences, "all seats are theirs who load"
        assert len(loads.begun) == 3
    (first, load), *_ = loads.begun
    load.abandon()
    plan = scheduler.schedule()
    assert [each.sequence_id for each in plan.sequences] == [first.sequence_id]
    assert len(loads.begun) == 3, "it has the seat now"


def test_no_more_load_than_there_are_blocks() -> None:
    """Each needs four blocks for its prompt and one for what comes next."""
    scheduler, loads = crowd(num_blocks=16, num_seqs=8)
    for _ in range(4):
        assert not scheduler.schedule().sequences
        assert len(loads.begun) == 3
