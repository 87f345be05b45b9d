"""Random traffic, and prefixes that come from tiers: whole, in part, wrong, late or never.

The traffic is that of the scheduler's machine, over a pool that is too small. Everything between
scheduler and tiers is real but the threads, which work when the machine lets them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import Random

import numpy as np
import torch
from fake_model import VOCABULARY
from hypothesis import settings
from test_scheduler_machine import SchedulerMachine

from pagoda.cache import AttentionWindow
from pagoda.cache.watcher import CacheWatcher
from pagoda.cache.window import EVERY_TOKEN
from pagoda.engine.prefill_rate import PrefillRate
from pagoda.engine.transfers.store_notes import StoreNotes
from pagoda.engine.transfers.stores import TierStores
from pagoda.engine.transfers.tier_loads import TierLoads
from pagoda.engine.transfers.transfers import TierTransfers
from pagoda.kernels.gpu.pinned import HostCopy
from pagoda.scheduling.prefix_loads import PrefixLoads
from pagoda.tiers.mover import TierMover
from pagoda.tiers.segment import Segment
from pagoda.tiers.shelf import Shelf
from pagoda.tiers.tier import FrameBytes
from tiers.fake_tier import FAULTS, FakeTier, ManualWorkers, formats

BLOCK_BYTES = 8
TIMEOUT_S = 0.06
STEP_S = 0.01
_OF_A_SHORT_POOL = 94
"""A life in which who runs needs the blocks of a load: few do, since a load has its own."""


class LoadMachine(SchedulerMachine):
    """A near tier and a far one; blocks that were computed go there, and come back."""

    def watchers(self, num_groups: int) -> tuple[CacheWatcher, ...]:
        self.notes = StoreNotes(takes_new=True, num_groups=num_groups)
        return (self.notes,)

    has_loads = True

    def new_loads(self) -> PrefixLoads:
        self.now = 0.0
        self.tiers = [FakeTier("near"), FakeTier("far")]
        self.workers: list[ManualWorkers] = []
        shelves = [
            Shelf(tier, formats(BLOCK_BYTES), timeout_s=TIMEOUT_S, stores_all=tier.kind == "near")
            for tier in self.tiers
        ]
        num_groups = len(self.cache.open().windows)
        self.mover = TierMover(
            shelves, BLOCK_BYTES * num_groups, new_workers=self.new_workers, probes=False
        )
        self.share = 1.0
        """Of what was found, how much is worth loading."""
        loads = TierLoads(
            self.cache,
            self.import_blocks,
            lambda request: self.scheduler.open_table(request),
            self.mover,
            self.gate,
            PrefillRate(),
            clock=lambda: self.now,
        )
        stores = TierStores(self.cache, self.begin_export, self.notes, self.mover, BLOCK_BYTES)
        self.transfers = TierTransfers(loads, stores, self.mover)
        self.contents: list[list[tuple[str | int, ...] | None]] = []
        """What the payloads stand for, by their numbers."""
        return loads

    def begin(self) -> None:
        self.model.num_gave_way = lambda: self.transfers.loads.endings["no_room"]

    def new_workers(self, name: str, num_threads: int) -> ManualWorkers:
        self.workers.append(ManualWorkers(name, num_threads))
        return self.workers[-1]

    def gate(self, segments: tuple[Segment, ...], row_s: float | None) -> int:
        return round(sum(each.num_rows for each in segments) * self.share)

    def begin_export(self, block_ids: Sequence[int]) -> HostCopy:
        size, numbers = self.cache.block_size, list[bytes]()
        for block_id in block_ids:
            self.contents.append(self.model.storage.slots[block_id * size :][:size])
            numbers.append(len(self.contents).to_bytes(BLOCK_BYTES, "big"))
        payloads = np.frombuffer(b"".join(numbers), np.uint8).reshape(-1, BLOCK_BYTES)
        return HostCopy(torch.from_numpy(payloads.copy()))

    def import_blocks(self, block_ids: Sequence[int], payloads: Sequence[FrameBytes]) -> None:
        size, slots = self.cache.block_size, self.model.storage.slots
        assert len(set(block_ids)) == len(block_ids)
        for block_id, payload in zip(block_ids, payloads, strict=True):
            number = int.from_bytes(payload, "big")
            slots[block_id * size : (block_id + 1) * size] = self.contents[number - 1]

    def weather(self, seed: int, is_fair: bool) -> None:
        """What happens around each step from now on."""
        self.random, self.is_fair = Random(seed), is_fair
        self.stuck: int | None = None
        """Workers that do nothing."""

    def step(self) -> None:
        self.now += STEP_S
        if not self.is_fair:
            self.spoil()
        for number, workers in enumerate(self.workers):
            if number != self.stuck:
                workers.work(self.random.choice([0, 1, 3, 30]))
        self.transfers.take_in()
        self.cache.check_integrity()
        super().step()
        self.transfers.hand_out(is_idle=False)

    def spoil(self) -> None:
        random, tier = self.random, self.random.choice(self.tiers)
        happens = random.random()
        if happens < 0.1:
            tier.fault = random.choice([None, *FAULTS])
        elif happens < 0.15:
            self.stuck = random.choice([None, None, 0, 2])
        elif happens < 0.2:
            self.share = random.choice([0.0, 0.5, 1.0])
        elif happens < 0.25:
            for name in list(tier.frames)[:: random.randint(1, 5)]:
                del tier.frames[name]
        elif happens < 0.3:  # as after a change that broke off
            self.model.ahead.clear()
            sequences = [each for choices in self.alive.values() for each in choices]
            self.scheduler.start_over([each for each in sequences if each.ending is None])
            assert self.cache.num_free_blocks == self.num_blocks
        elif happens < 0.5:  # what the tiers have is all that is left
            self.cache.forget()

    def has_nothing_to_compute(self) -> bool:
        waiting = self.scheduler._waiting
        is_loading = any(each.awaited_load and not each.awaited_load.is_done for each in waiting)
        return super().has_nothing_to_compute() or is_loading

    def finish(self) -> None:
        super().finish()
        assert self.transfers.loads.num_under_way == 0
        assert not self.cache._in_flight


def live(seed: int) -> LoadMachine:
    """Requests come, go and come again until all are answered."""
    random, machine = Random(seed), LoadMachine()
    full = AttentionWindow(EVERY_TOKEN)
    machine.start(
        block_size=random.randint(1, 4),
        spare_blocks=random.choice([0, 0, 0, 8]),
        budget=random.randint(2, 16),
        seats=random.randint(1, 8),
        threshold=random.choice([0, 0, 3]),
        policy=random.choice(["fcfs", "priority"]),
        sharing=random.random() < 0.95,
        prompt_rows=8,
        num_ahead=random.randint(0, 3),
        every=random.randint(1, 4),
        windows=random.choice(
            [[full], [full], [full, AttentionWindow(5)], [AttentionWindow(7, 2)]]
        ),
        weight=random.choice([1.0, 0.25, 3.0]),
        floors=random.choice([[], [], [3], [2, 5]]),
        spare_of_cap=random.choice([None, None, 3]),
        steps_aside=random.random() < 0.5,
    )
    machine.weather(seed=seed, is_fair=random.random() < 0.3)
    prompts = [
        [number % 2] * 6 + [random.randrange(VOCABULARY) for _ in range(random.randint(2, 12))]
        for number in range(4)
    ]
    for _ in range(25):
        machine.arrive(
            copies=random.choice([1, 1, 2]),
            prompt=random.choice(prompts)[: random.randint(4, 18)],
            max_tokens=random.randint(1, 12),
            n=random.choice([1, 1, 1, 2]),
            priority=random.randint(0, 2),
            salt=random.choice(["", "", "", "a"]),
            tenant=random.choice(["", "", "", "b", "c"]),
            stops=random.choice([[], [], [0]]),
            prompt_logprobs=random.choice([None, None, None, None, 0]),
            retention=random.choice([None, None, None, "window:5"]),
            hint=None,
        )
        if random.random() < 0.3 and machine.alive:
            request_id = random.choice(sorted(machine.alive))
            machine.scheduler.abort(request_id)
            assert all(each.ending for each in machine.alive.pop(request_id))
        machine.steps(random.randint(1, 12))
        machine.everything_holds()
    machine.finish()
    return machine


def test_whatever_comes_of_loads_every_answer_is_right() -> None:
    num_lives = 1500 if settings.get_current_profile_name() == "long" else 20
    endings, num_preemptions, num_loaded = Counter[str](), 0, 0
    for seed in (*range(num_lives), _OF_A_SHORT_POOL):
        machine = live(seed)
        endings += machine.transfers.loads.endings
        num_preemptions += machine.scheduler.stats().num_preemptions
        num_loaded += machine.transfers.loads.num_tokens_loaded
    seen = {"whole", "not_found", "gated", "abandoned", "late", "no_room"}
    assert seen <= endings.keys()
    assert endings.keys() & {"checksum", "torn", "missing", "unreachable", "error"}
    assert num_preemptions > num_lives
    assert num_loaded > 10 * num_lives
