"""Floors and caps among sequences that run and wait."""

from __future__ import annotations

from collections import Counter

from fake_model import FakeModel, expected_output, request

from pagoda.cache import AttentionWindow, CacheManager
from pagoda.cache.quota import Quota
from pagoda.cache.window import FULL_ATTENTION
from pagoda.scheduling import Scheduler, Sequence, Status

BLOCK_SIZE, MAX_MODEL_LEN = 4, 40


def make(num_blocks: int, **quotas: Quota) -> tuple[Scheduler, FakeModel]:
    cache = CacheManager(num_blocks, BLOCK_SIZE, quotas=quotas)
    limits = {"max_num_batched_tokens": 64, "max_num_seqs": 16, "max_model_len": MAX_MODEL_LEN}
    scheduler = Scheduler(cache, **limits)
    return scheduler, FakeModel(scheduler, num_blocks)


def ask(scheduler: Scheduler, tenant: str, number: int, max_tokens: int = 30) -> Sequence:
    """A prompt of a block and a token; the longest answer makes it nine blocks."""
    prompt = [number % 5, number // 5 % 5, 1, 2, 3]
    options = {"tenant": tenant, "arrival_time": number, "max_tokens": max_tokens}
    (sequence,) = scheduler.add(request(f"{tenant}{number}", prompt, **options))
    return sequence


def run(scheduler: Scheduler, model: FakeModel, sequences: list[Sequence]) -> None:
    while scheduler.has_unfinished:
        model.step()
        scheduler.cache.check_integrity()
    for sequence in sequences:
        asked = sequence.request
        assert asked.sampling.max_tokens is not None
        assert sequence.output_token_ids == expected_output(
            asked.prompt_token_ids, asked.sampling.max_tokens, MAX_MODEL_LEN
        )


def test_whoever_is_at_its_cap_keeps_nobody_waiting_and_preempts_its_own() -> None:
    scheduler, model = make(64, a=Quota(cap=12))
    crowd = [ask(scheduler, "a", number) for number in range(6)]
    for _ in range(3):
        model.step()
    others = [ask(scheduler, "b", 10 + number) for number in range(3)]
    model.step()
    assert all(each.status is Status.RUNNING for each in others)
    assert sum(each.status is Status.RUNNING for each in crowd) < 6
    run(scheduler, model, [*crowd, *others])
    assert all(each.stay == 0 for each in others), "preempted for a tenant that is at its cap"
    assert any(each.stay for each in crowd)


def test_within_its_floor_nobody_is_preempted_for_others() -> None:
    scheduler, model = make(40, b=Quota(floor=20))
    own = [ask(scheduler, "b", number) for number in range(2)]
    model.step()
    crowd = [ask(scheduler, "a", 10 + number) for number in range(6)]
    run(scheduler, model, [*own, *crowd])
    assert all(each.stay == 0 for each in own)
    assert any(each.stay for each in crowd)


def test_a_floor_is_had_at_once_whoever_waits_for_room() -> None:
    """The crowd holds all that it may, and more of it waits: b begins all the same."""
    scheduler, model = make(40, b=Quota(floor=10))
    crowd = [ask(scheduler, "a", number) for number in range(14)]
    for _ in range(24):
        model.step()
    assert any(each.status is Status.WAITING for each in crowd)
    late = ask(scheduler, "b", 99)
    model.step()
    assert late.num_output_tokens == 1
    run(scheduler, model, [*crowd, late])
    assert late.stay == 0


def test_without_a_floor_it_would_wait() -> None:
    scheduler, model = make(40)
    for number in range(14):
        ask(scheduler, "a", number)
    for _ in range(24):
        model.step()
    late = ask(scheduler, "b", 99)
    model.step()
    assert late.num_output_tokens == 0


def test_a_conversation_outlasts_a_flood_within_its_floor() -> None:
    """What b has cached is found again, however much a has gone through meanwhile."""
    scheduler, model = make(48, b=Quota(floor=10))
    turn = ask(scheduler, "b", 3)
    run(scheduler, model, [turn])
    run(scheduler, model, [ask(scheduler, "a", number) for number in range(20)])
    again = scheduler.add(
        request("again", [*turn.token_ids, 1, 2], tenant="b", arrival_time=99, max_tokens=1)
    )
    run(scheduler, model, list(again))
    assert again[0].num_cached_tokens == len(turn.token_ids) // BLOCK_SIZE * BLOCK_SIZE


def test_block_seconds_are_those_of_an_independent_count() -> None:
    """Each step takes a second, and somebody else looks at every table in each."""
    now = [0]
    cache = CacheManager(24, BLOCK_SIZE, quotas={"b": Quota(10, 14)}, clock=lambda: now[0])
    limits = {"max_num_batched_tokens": 64, "max_num_seqs": 6, "max_model_len": MAX_MODEL_LEN}
    scheduler = Scheduler(cache, **limits)
    model = FakeModel(scheduler, 24)
    counted: Counter[str] = Counter()
    arrivals = [(tenant, 3 * number) for number in range(12) for tenant in ("a", "b")]
    for step in range(1000):
        for number, (tenant, due) in enumerate(arrivals):
            if due == step:
                ask(scheduler, tenant, number, max_tokens=16 + number % 20)
        model.step()
        now[0] += 1
        for tenant in ("a", "b"):
            tables = [each.table for each in scheduler._running if each.tenant == tenant]
            counted[tenant] += len({block for table in tables for block in table.block_ids})
        if step > arrivals[-1][1] and not scheduler.has_unfinished:
            break
    assert scheduler.stats().num_preemptions > 0
    held = {tenant: each.held_block_seconds for tenant, each in cache.holdings().items()}
    assert held == counted


def test_a_cap_that_leaves_a_block_where_two_are_needed_is_no_matter_of_others() -> None:
    """Two groups of layers take two blocks at a time; one is left of the cap."""
    windows = [FULL_ATTENTION, AttentionWindow(8, 0)]
    cache = CacheManager(200, BLOCK_SIZE, windows=windows, quotas={"a": Quota(cap=21)})
    limits = {"max_num_batched_tokens": 64, "max_num_seqs": 16, "max_model_len": MAX_MODEL_LEN}
    scheduler = Scheduler(cache, **limits)
    model = FakeModel(scheduler, 200)
    own = [ask(scheduler, "a", number) for number in range(2)]
    others = [ask(scheduler, "b", 10 + number) for number in range(4)]
    run(scheduler, model, [*own, *others])
    assert all(each.stay == 0 for each in others)


def test_whoever_preempts_its_own_at_its_cap_stops_nobodys_beginning() -> None:
    scheduler, model = make(200, a=Quota(cap=25))
    crowd = [ask(scheduler, "a", number) for number in range(24)]
    for step in range(16):
        other = ask(scheduler, "b", 100 + step, max_tokens=1)
        model.step()
        assert other.status is Status.FINISHED, "it waits for nothing"
    assert any(each.stay for each in crowd)
    run(scheduler, model, crowd)


def test_no_seat_is_kept_for_whoever_is_at_its_cap() -> None:
    cache = CacheManager(400, BLOCK_SIZE, quotas={"a": Quota(cap=10)})
    limits = {"max_num_batched_tokens": 64, "max_num_seqs": 8, "max_model_len": MAX_MODEL_LEN}
    scheduler = Scheduler(cache, **limits)
    model = FakeModel(scheduler, 400)
    others = [ask(scheduler, "b", number) for number in range(10)]
    for _ in range(3):
        model.step()
    capped = [ask(scheduler, "a", 50 + number) for number in range(5)]
    for _ in range(20):
        model.step()
        running = [each for each in (*others, *capped) if each.status is Status.RUNNING]
        waiting = [each for each in others if each.status is Status.WAITING]
        assert len(running) >= 7 or not waiting, "a seat is idle while others wait"
    run(scheduler, model, [*others, *capped])
