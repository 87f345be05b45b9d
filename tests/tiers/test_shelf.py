"""A shelf and the mover: whatever a tier does, a miss is the worst that comes of it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import pytest
from fake_tier import FAULTS, FakeTier, ManualWorkers, formats

from pagoda.tiers.breaker import NUM_FAILURES
from pagoda.tiers.frame import FrameFormat
from pagoda.tiers.frame_formats import FrameFormats
from pagoda.tiers.mover import TierMover
from pagoda.tiers.names import BlockName
from pagoda.tiers.namespace import Namespace
from pagoda.tiers.probe import Probe
from pagoda.tiers.prober import Prober
from pagoda.tiers.segment import Segment, behind, leading
from pagoda.tiers.shelf import Payloads, Shelf

BLOCK_BYTES = 64
SECRET = b"s" * 32


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def rows_of(count: int, *, groups: int = 1, first: int = 0) -> list[list[BlockName]]:
    return [
        [BlockName(number.to_bytes(32, "big"), group) for group in range(groups)]
        for number in range(first, first + count)
    ]


def payload_of(name: BlockName) -> bytes:
    return (name.block_hash[-8:] + bytes([name.group])) * (BLOCK_BYTES // 9) + b"x"


def shelf_of(tier: FakeTier, *, stores_all: bool = True, block_bytes: int = BLOCK_BYTES) -> Shelf:
    form = formats(block_bytes, secret=SECRET if tier.is_shared else None)
    return Shelf(tier, form, timeout_s=0.5, stores_all=stores_all)


def stock(shelf: Shelf, rows: list[list[BlockName]], tenant: str = "") -> None:
    shelf.store(tenant, [(name, payload_of(name)) for row in rows for name in row])


def load_all(shelf: Shelf, rows: list[list[BlockName]], tenant: str = "") -> tuple[int, str | None]:
    """How many rows came, all of them right, and why no more."""
    taken: list[Payloads] = []

    def take(payloads: Payloads) -> bool:
        taken.append(payloads)
        return True

    ending = shelf.load(tenant, rows, take)
    for row, payloads in zip(rows, taken, strict=False):
        assert [bytes(each) for each in payloads] == list(map(payload_of, row))
    return len(taken), ending


def eventually(is_true: Callable[[], bool], within_s: float = 10.0) -> None:
    until = time.monotonic() + within_s
    while not is_true():
        assert time.monotonic() < until, "it never comes"
        time.sleep(0.001)


@pytest.mark.parametrize("is_shared", [False, True])
def test_what_is_stored_is_found_and_loaded_row_by_row(is_shared: bool) -> None:
    tier = FakeTier(is_shared=is_shared)
    shelf, rows = shelf_of(tier), rows_of(80, groups=2)
    assert shelf.find("a", rows) == 0
    stock(shelf, rows[:70], "a")
    assert shelf.find("a", rows) == 70
    assert load_all(shelf, rows[:70], "a") == (70, None)
    assert load_all(shelf, rows, "a") == (70, "missing")
    assert shelf.find("a", rows[70:]) == 0
    if is_shared:
        assert shelf.find("b", rows) == 0
        assert max(number for call, number in tier.calls if call == "holds") == 140
        assert tier.calls[0][1] < 40, "a shared tier is asked for some rows of many"
    counts = shelf.stats().counts
    assert (counts.frames_stored, counts.rejected["missing"]) == (140, 1)


def test_a_row_is_there_only_where_all_of_its_groups_are() -> None:
    tier = FakeTier()
    shelf, rows = shelf_of(tier), rows_of(4, groups=2)
    stock(shelf, rows)
    del tier.frames[formats(BLOCK_BYTES).of("").name(rows[2][1])]
    assert shelf.find("", rows) == 2
    assert load_all(shelf, rows) == (2, "missing")
    assert shelf.wants(rows[2][1], reused=False), "it is known to be gone"


@pytest.mark.parametrize("fault", FAULTS)
def test_whatever_a_tier_does_nothing_is_raised_and_nothing_wrong_is_given(fault: str) -> None:
    tier = FakeTier()
    shelf, rows = shelf_of(tier), rows_of(4)
    stock(shelf, rows)
    tier.fault = fault
    num_rows, ending = load_all(shelf, rows)
    expected = {"wrong": "checksum", "half": "unreachable", "error": "unreachable"}
    assert ending == expected.get(fault, "error" if fault == "panic" else fault)
    assert num_rows == (2 if fault == "half" else 0)
    if fault in ("wrong", "torn"):
        assert len(tier.frames) == 3, "a bad frame goes"
    shelf.store("", [(rows_of(1, first=9)[0][0], bytes(BLOCK_BYTES))])
    assert shelf.find("", rows) in (0, 4)
    tier.fault = None
    stock(shelf, rows)
    assert load_all(shelf, rows) == (4, None)


def test_a_tenant_whose_frames_cannot_be_made_is_a_miss() -> None:
    tier, rows = FakeTier(), rows_of(2)

    def refuse(tenant: str) -> FrameFormat:
        raise ValueError("planted")

    shelf = Shelf(tier, FrameFormats(refuse), timeout_s=0.5, stores_all=True)
    assert not Probe(shelf).run()
    assert shelf.find("", rows) == 0
    assert load_all(shelf, rows) == (0, "error")
    shelf.remove("", rows[0])
    stock(shelf, rows)
    assert tier.calls == [], "it is not the tier that fails"
    assert shelf.stats().counts.failures["error"] == 5


def test_all_tiers_are_closed_though_one_fails_to() -> None:
    manual = Manual(FakeTier("first"), FakeTier("last"))
    first, last = (shelf.tier for shelf in manual.shelves)
    first.close = lambda: first._begin("close", 0)
    first.fault = "panic"
    manual.mover.close(0)
    assert last.is_closed
    assert first.calls == [("close", 0)]


def test_a_tier_that_keeps_failing_is_left_alone_and_tried_again() -> None:
    now = [0.0]
    tier = FakeTier()
    shelf = Shelf(tier, formats(BLOCK_BYTES), timeout_s=1, stores_all=True, clock=lambda: now[0])
    tier.fault = "error"
    for _ in range(5):
        assert shelf.reading.is_closed
        shelf.find("", rows_of(1))
    assert not shelf.reading.is_closed
    assert not shelf.wants(rows_of(1)[0][0], reused=False)
    tier.fault, now[0] = None, 20.0
    Probe(shelf).run()
    assert shelf.reading.is_closed
    assert not tier.frames, "a probe leaves nothing"


def test_a_tier_that_answers_questions_and_breaks_off_frames_is_left_alone() -> None:
    tier = FakeTier()
    shelf, rows = shelf_of(tier), rows_of(4)
    stock(shelf, rows)
    tier.fault = "half"
    num_loads = 0
    while shelf.stats().is_open:
        assert num_loads < 5
        assert shelf.find("", rows) == 4
        assert load_all(shelf, rows) == (2, "unreachable")
        num_loads += 1
    assert num_loads == 5


def test_a_tier_that_takes_nothing_is_tried_by_what_it_has() -> None:
    """Where it breaks off frames as well, its answers to questions do not make it well."""
    tier = FakeTier()
    clock, rows = Clock(), rows_of(4)
    shelf = Shelf(tier, formats(BLOCK_BYTES), timeout_s=0.5, stores_all=True, clock=clock)
    probe = Probe(shelf)
    stock(shelf, rows)
    tier.fault = "half"
    tier.store = tier.refuse
    for _ in range(5):
        load_all(shelf, rows)
    assert not shelf.stats().is_open
    for clock.now in range(1, 60):
        if shelf.reading.allows():
            assert not probe.run()
            assert not shelf.stats().is_open
    tier.fault = None
    clock.now += 10
    assert shelf.reading.allows()
    assert probe.run()
    assert shelf.stats().is_open
    probe.run()
    assert load_all(shelf, rows) == (4, None)


def test_probes_of_a_tier_that_removes_nothing_leave_one_frame() -> None:
    tier, clock = FakeTier(), Clock()
    shelf = Shelf(tier, formats(BLOCK_BYTES), timeout_s=0.5, stores_all=True, clock=clock)
    probe = Probe(shelf)
    remove, store = tier.remove, tier.store
    tier.remove = lambda names, timeout_s: tier.refuse([], timeout_s)
    for clock.now in range(20):
        assert probe.run()
        assert len(tier.frames) == 1
        assert (shelf.reading.is_closed, shelf.writing.is_closed) == (True, True)
        assert shelf.used_at == clock.now, "it is read each time"
    tier.store = tier.refuse
    for number in range(5):
        stock(shelf, rows_of(1, first=number))
    for clock.now in range(20, 60, 10):
        assert shelf.writing.allows()
        assert probe.run()
        assert not shelf.writing.is_closed, "a frame that is there does not tell that it stores"
    tier.store, tier.remove = store, remove
    clock.now = 80
    assert shelf.writing.allows()
    assert probe.run()
    assert shelf.writing.is_closed
    assert not tier.frames, "what was left goes as well"
    assert probe.run()
    assert not tier.frames


def test_a_tier_that_is_asked_and_never_loaded_from_is_measured_anew() -> None:
    """As one whose rates were bad once, so that a gate lets nothing through."""
    clock, rows = Clock(), rows_of(4)
    shelf = Shelf(FakeTier(), formats(BLOCK_BYTES), timeout_s=0.5, stores_all=True, clock=clock)
    prober = Prober(shelf, clock)
    assert prober._is_due()
    Probe(shelf).run()
    stock(shelf, rows)
    for clock.now in (10.0, 40.0, 59.0):
        shelf.find("", rows)
        assert not prober._is_due()
    clock.now = 61.0
    shelf.find("", rows)
    assert prober._is_due()
    load_all(shelf, rows)
    assert not prober._is_due()


def test_a_shelf_that_was_never_well_is_tried_as_its_breakers_say() -> None:
    """Not in each turn of its thread, however long ago anything was loaded."""
    clock, tier = Clock(), FakeTier()
    shelf = Shelf(tier, formats(BLOCK_BYTES), timeout_s=0.5, stores_all=True, clock=clock)
    for breaker in (shelf.reading, shelf.writing):
        breaker._clock = clock
    prober, tried = Prober(shelf, clock), list[float]()
    tier.fault = "error"
    for _ in range(NUM_FAILURES):
        prober._try()
    for turn in range(120):
        clock.now = turn / 4
        if prober._is_due():
            tried.append(clock.now)
            prober._try()
    assert tried == [0.5, 1.5, 3.5, 7.5, 15.5, 23.5]
    tier.fault = None
    clock.now = 31.5
    assert prober._is_due()
    assert prober._try()
    assert not prober._is_due()
    tier.store = tier.refuse  # type: ignore[method-assign]
    shelf.used_at = -float("inf")
    clock.now = 80.0
    assert not prober._is_due(), "it was tried a while ago, if not used"


def test_stores_are_what_is_new_or_what_was_found_again() -> None:
    [[name]] = rows_of(1)
    shelf = shelf_of(FakeTier(), stores_all=False)
    assert not shelf.wants(name, reused=False)
    assert shelf.wants(name, reused=True)
    stock(shelf, [[name]])
    assert not shelf.wants(name, reused=True)


class Manual:
    """A mover over fake tiers, whose threads work when they are told to."""

    def __init__(self, *tiers: FakeTier, waiting: int = 2**20) -> None:
        self.workers: list[ManualWorkers] = []
        self.shelves = [shelf_of(tier) for tier in tiers]

        def new_workers(name: str, num_threads: int) -> ManualWorkers:
            self.workers.append(ManualWorkers(name, num_threads))
            return self.workers[-1]

        self.mover = TierMover(
            self.shelves, BLOCK_BYTES,
            waiting_bytes=waiting, new_workers=new_workers, probes=False,
        )  # fmt: skip

    def work(self) -> None:
        while any(each.tasks for each in self.workers):
            for each in self.workers:
                each.work(1)


def test_shelves_are_asked_in_order_and_loaded_from_at_once() -> None:
    manual = Manual(FakeTier("near"), FakeTier("far"))
    rows = rows_of(10)
    stock(manual.shelves[0], rows[:4])
    stock(manual.shelves[1], rows[2:9])
    look_up = manual.mover.look_up("", rows, manual.mover.whom_to_ask(len(rows), 1.0))
    assert not look_up.is_done
    manual.work()
    assert [(each.shelf, each.num_rows) for each in look_up.segments] == [(0, 4), (1, 5)]
    load = manual.mover.load("", rows, look_up.segments)
    manual.workers[2].work(1)  # the far one is first
    assert load.take(100) == []
    manual.work()
    taken = load.take(3) + load.take(100)
    assert [bytes(payload) for (payload,) in taken] == [payload_of(row[0]) for row in rows[:9]]
    assert load.is_done
    assert load.ending is None


def test_a_shelf_that_would_not_pay_is_asked_where_its_answer_costs_next_to_nothing() -> None:
    manual = Manual(FakeTier("near"), FakeTier("far"))
    near, far = manual.shelves
    for shelf, round_trip_s, row_s in ((near, 1e-3, 1e-4), (far, 0.05, 0.02)):
        shelf.rates.note_round_trip(round_trip_s)
        shelf.rates.note_load(BLOCK_BYTES, round_trip_s + row_s)

    def asked(num_rows: int, compute_s: float) -> tuple[tuple[int, ...], bool]:
        found = manual.mover.whom_to_ask(num_rows, compute_s)
        return found.shelves, found.may_pay

    assert asked(100, 10.0) == ((0, 1), True)
    assert asked(100, 1.2) == ((0, 1), True), "the far one in vain, for a twentieth of the time"
    assert asked(100, 0.9) == ((0,), True), "all of it would take 2.05 s to load from the far one"
    assert asked(1, 0.11) == ((0,), True), "the far one's answer takes half as long as computing"
    assert asked(1, 0.13) == ((0, 1), True)
    assert asked(100, 0.011) == ((), False)
    assert asked(1, 0.0015) == ((), False)
    for _ in range(NUM_FAILURES):
        near.reading.failed()
    assert asked(100, 1.2) == ((1,), False)
    assert asked(100, 0.9) == ((), False)


def test_where_a_part_stops_short_the_load_ends() -> None:
    near, far = FakeTier("near"), FakeTier("far")
    manual = Manual(near, far)
    rows = rows_of(10)
    stock(manual.shelves[0], rows[:4])
    stock(manual.shelves[1], rows[4:])
    look_up = manual.mover.look_up("", rows, manual.mover.whom_to_ask(len(rows), 1.0))
    manual.work()
    near.fault = "half"
    load = manual.mover.load("", rows, look_up.segments)
    manual.work()
    assert len(load.take(100)) == 2
    assert load.is_done
    assert load.ending == "unreachable"


def test_what_comes_late_is_dropped_with_its_load() -> None:
    manual = Manual(FakeTier())
    rows = rows_of(3)
    stock(manual.shelves[0], rows)
    look_up = manual.mover.look_up("", rows, manual.mover.whom_to_ask(len(rows), 1.0))
    manual.work()
    load = manual.mover.load("", rows, look_up.segments)
    load.abandon()
    assert load.is_done
    manual.work()
    assert load.take(100) == []


def test_a_long_load_comes_in_batches_that_wait_to_be_taken(monkeypatch) -> None:
    monkeypatch.setattr("pagoda.tiers.rows_from_shelves.BATCH_BYTES", 4 * BLOCK_BYTES)
    monkeypatch.setattr("pagoda.tiers.rows_from_shelves._WAITING_BYTES", 6 * BLOCK_BYTES)
    tier = FakeTier()
    manual = Manual(tier)
    rows = rows_of(30)
    stock(manual.shelves[0], rows)
    load = manual.mover.load("", rows, [Segment(0, 30, None)])
    manual.work()
    assert [number for call, number in tier.calls if call == "load"] == [4, 4]
    taken = []
    while not load.is_done:
        taken += load.take(5)
        manual.work()
    assert len(taken) == 30


def test_stores_wait_in_bounded_bytes_and_go_out_many_at_once() -> None:
    tier = FakeTier()
    manual = Manual(tier, waiting=4 * BLOCK_BYTES)
    mover, names = manual.mover, [row[0] for row in rows_of(6)]
    stored = [mover.store("", name, payload_of(name), reused=False) for name in names]
    assert stored == [True] * 4 + [False] * 2
    assert not mover.wants(names[0], reused=False), "it is being given it"
    assert mover.num_free_bytes == 0
    manual.work()
    assert [number for call, number in tier.calls if call == "store"] == [4]
    assert mover.num_free_bytes == 4 * BLOCK_BYTES
    assert not mover.wants(names[0], reused=False)
    assert mover.wants(names[5], reused=False)
    assert mover.stats()[0].counts.frames_dropped == 2


def test_segments_are_cut() -> None:
    segments = [Segment(0, 4, 2.0), Segment(1, 6, None)]
    assert leading(segments, 6) == (Segment(0, 4, 2.0), Segment(1, 2, None))
    assert leading(segments, 2) == (Segment(0, 2, 1.0),)
    assert leading(segments, 0) == ()
    assert behind(segments, 3) == (Segment(0, 1, 0.5), Segment(1, 6, None))
    assert behind(segments, 4) == (Segment(1, 6, None),)
    assert behind(segments, 10) == ()


def test_a_tier_that_hangs_holds_up_nobody_else() -> None:
    """With threads: calls return at once, a near tier that hangs is soon not asked any more."""
    hanging, well = FakeTier("hanging"), FakeTier("well")
    shelves = [shelf_of(hanging), shelf_of(well)]
    shelves[0].timeout_s = 0.01
    rows = rows_of(3)
    for shelf in shelves:
        stock(shelf, rows)
    hanging.fault = "hang"
    mover = TierMover(shelves, BLOCK_BYTES, probes=False)
    began = time.monotonic()
    for _ in range(8):
        assert not mover.look_up("", rows, mover.whom_to_ask(len(rows), 1.0)).is_done
    for number in range(20):
        name = rows_of(1, first=100 + number)[0][0]
        assert mover.store("", name, payload_of(name), reused=False)
    assert time.monotonic() - began < 1.0
    time.sleep(0.05)
    look_up = mover.look_up("", rows, mover.whom_to_ask(len(rows), 1.0))
    eventually(lambda: look_up.is_done)
    assert [each.shelf for each in look_up.segments] == [1]
    load = mover.load("", rows, look_up.segments)
    taken: list[Payloads] = []
    while not load.is_done:
        mover.wait(0.1)
        taken += load.take(10)
    assert len(taken) == 3
    eventually(lambda: len(well.frames) == 23)
    hanging.released.set()
    mover.close(5.0)
    assert hanging.is_closed
    assert well.is_closed


def test_a_tier_whose_stores_hang_takes_no_room_from_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    hanging, well = FakeTier("hanging"), FakeTier("well")
    shelves = [shelf_of(hanging), shelf_of(well)]
    shelves[0].timeout_s = 0.01
    hanging.fault = "hang"
    mover = TierMover(shelves, BLOCK_BYTES, waiting_bytes=4 * BLOCK_BYTES, probes=False)
    for number in range(40):
        eventually(lambda: mover.num_free_bytes == 4 * BLOCK_BYTES)
        [[name]] = rows_of(1, first=number)
        assert mover.wants(name, reused=False)
        mover.store("", name, payload_of(name), reused=False)
    eventually(lambda: len(well.frames) == 40)
    [[new]] = rows_of(1, first=99)
    eventually(lambda: not shelves[0].wants(new, reused=False) or not mover.stats()[0].takes_stores)
    with caplog.at_level(logging.WARNING, "pagoda"):
        assert mover.store("", new, payload_of(new), reused=False), "only the one that is well"
    assert [each.takes_stores for each in mover.stats()] == [False, True]
    assert mover.stats()[0].counts.failures["hang"] == 1, "it is counted once"
    assert not mover.wait_until_stored(0.01)
    hanging.fault = None
    hanging.released.set()
    eventually(lambda: mover.stats()[0].takes_stores)
    mover.close(5.0)


def test_a_label_that_was_removed_comes_back_and_is_not_asked_for_each_time() -> None:
    namespace, tier, clock = Namespace({"weights": "ab12"}, "a model"), FakeTier(), Clock()
    label = (namespace.label_name, namespace.label)
    shelf = Shelf(
        tier, formats(BLOCK_BYTES), timeout_s=0.5, stores_all=True, label=label, clock=clock
    )

    def stock_one(number: int) -> bytes | None:
        stock(shelf, rows_of(1, first=number))
        return tier.frames.get(namespace.label_name)

    assert stock_one(0) == namespace.label
    tier.calls.clear()
    del tier.frames[namespace.label_name]
    assert stock_one(1) is None
    assert tier.calls == [("holds", 1), ("store", 1)], "a tier is not asked for it at each store"
    clock.now = 61.0
    assert stock_one(1) == namespace.label, "though the block itself is there already"
    assert stock_one(2) == namespace.label
    assert shelf.stats().counts.frames_stored == 3


def test_so_many_blocks_are_known_to_be_there() -> None:
    shelf, rows = shelf_of(FakeTier()), rows_of(6)
    shelf.known.bound(4)
    stock(shelf, rows)
    assert [name in shelf.known for (name,) in rows] == 2 * [False] + 4 * [True]
    stock(shelf, rows[2:3])
    stock(shelf, rows[:1])
    assert [name in shelf.known for (name,) in rows] == [True, False, True, False, True, True]


def test_what_a_tier_holds_is_told_soon_after_it_changed() -> None:
    now, tier = [0.0], FakeTier()
    shelf = Shelf(tier, formats(BLOCK_BYTES), timeout_s=1.0, stores_all=True, clock=lambda: now[0])

    def told() -> int | None:
        shelf.look()
        usage = shelf.stats().usage
        return None if usage is None else usage.num_frames

    assert told() == 0
    for rows, seconds, expected in ((4, 3.0, 4), (5, 0.1, 4), (0, 3.0, 5), (0, 9.0, 5), (7, 0, 7)):
        now[0] += seconds
        stock(shelf, rows_of(9)[:rows]) if rows else None
        assert told() == expected
    tier.frames.clear()  # by others
    now[0] += 9.0
    assert told() == 7
    now[0] += 9.0
    load_all(shelf, rows_of(1))  # one that is loaded from is not probed
    assert told() == 0
    tier.frames["another's"] = b""
    now[0] += 3.0
    shelf.remove("", [rows_of(1)[0][0]])
    assert told() == 1


def test_a_tier_is_probed_at_once_and_found_well_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("pagoda.tiers.prober._TICK_S", 0.001)
    monkeypatch.setattr("pagoda.tiers.breaker.FIRST_WAIT_S", 0.001)
    tier = FakeTier()
    tier.fault = "error"
    shelf = shelf_of(tier)
    with caplog.at_level(logging.WARNING, "pagoda"):
        mover = TierMover([shelf], BLOCK_BYTES)
        eventually(lambda: not mover.whom_to_ask(1, 1.0).shelves)
        eventually(lambda: bool(caplog.records))  # which comes a moment later
    assert [each.getMessage() for each in caplog.records] == [
        "the tier fake is not asked for blocks until it is well: planted"
    ], "one that is down at the start is told of once"
    tier.fault = None
    eventually(lambda: mover.whom_to_ask(1, 1.0).shelves)
    eventually(lambda: shelf.rates.bytes_per_s is not None)
    assert mover.stats()[0].usage is not None
    mover.close(1.0)
