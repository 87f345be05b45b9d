"""Faults that running ahead had, or could have, are found by random traffic when they are planted.

The traffic is that of `test_scheduler_machine`, made narrow and quick: a crowd over a pool that is
too small, two or three steps ahead. The machine itself finds them too, in more examples.
"""

from random import Random

import pytest
from fake_model import VOCABULARY, FakeModel, expected_output, request

from pagoda.cache import AttentionWindow, BlockTable, CacheManager
from pagoda.cache.let_go import let_go
from pagoda.cache.window import FULL_ATTENTION
from pagoda.errors import PagodaError
from pagoda.scheduling import ScheduledSequence, Scheduler, Sequence, Status, admitter

NUM_LIVES = 300
WINDOWS = (
    (FULL_ATTENTION,),
    (FULL_ATTENTION, AttentionWindow(5)),
    (AttentionWindow(7, 2), AttentionWindow(3)),
)
MAX_MODEL_LEN = 30


def live(seed: int) -> int:
    """Random requests come and go until all are answered; returns how many were preempted."""
    random = Random(seed)
    block_size = random.randint(1, 4)
    num_ahead, budget = random.randint(2, 3), random.randint(2, 8)
    windows = random.choice(WINDOWS)
    under_way = max(budget, block_size) * (num_ahead + 1)
    num_blocks = random.randint(0, 3) + sum(
        window.num_blocks(MAX_MODEL_LEN, block_size, under_way) for window in windows
    )
    cache = CacheManager(num_blocks, block_size, windows=windows, under_way_tokens=under_way)
    scheduler = Scheduler(
        cache,
        max_num_batched_tokens=budget,
        max_num_seqs=random.randint(2, 6),
        max_model_len=MAX_MODEL_LEN,
        policy=random.choice(["fcfs", "priority"]),
    )
    model = FakeModel(scheduler, num_blocks, num_ahead=num_ahead)
    alive: list[Sequence] = []
    for number in range(random.randint(4, 10)):
        prompt = [random.randrange(VOCABULARY) for _ in range(random.randint(1, 12))]
        if random.random() < 0.5:
            prompt = [0] * 6 + prompt
        alive += scheduler.add(
            request(
                str(number),
                prompt,
                max_tokens=random.randint(1, 16),
                n=random.choice([1, 1, 2]),
                priority=random.randint(0, 2),
                arrival_time=number,
            )
        )
        for _ in range(random.randint(0, 4)):
            model.step()
            cache.check_integrity()
    for _ in range(2000):
        if not scheduler.has_unfinished:
            break
        model.step()
        cache.check_integrity()
    assert not scheduler.has_unfinished, "a sequence never ends"
    for sequence in alive:
        asked = sequence.request
        expected = expected_output(
            asked.prompt_token_ids, asked.sampling.max_tokens or 0, MAX_MODEL_LEN
        )
        assert sequence.output_token_ids == expected
    assert cache.num_free_blocks == num_blocks
    return scheduler.stats().num_preemptions


def test_without_a_fault_every_life_ends_well() -> None:
    assert sum(live(seed) > 0 for seed in range(25)) > 5, "too few lives see a preemption"


def expect_a_find(first: int = 0) -> None:
    """first: the life that is tried first, where many before it end well in spite of a fault."""
    with pytest.raises((AssertionError, LookupError, PagodaError)):
        sum(live(seed) for seed in range(first, first + NUM_LIVES))


def test_publishing_what_an_earlier_stay_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sequence that was preempted and runs again is not told from one that stayed."""
    update = Scheduler.update

    def forget_stays(
        self: Scheduler, scheduled: ScheduledSequence, token_id: int | None
    ) -> Sequence | None:
        sequence = self._register.get(scheduled.sequence_id)
        if sequence is not None and sequence.status is Status.RUNNING:
            scheduled = scheduled._replace(stay=sequence.stay)
        return update(self, scheduled, token_id)

    monkeypatch.setattr(Scheduler, "update", forget_stays)
    expect_a_find(first=135)


def test_admitting_whoever_has_tokens_that_are_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sequence that was preempted comes back before its own tokens are known."""
    is_held_up = admitter.is_held_up

    def hold_nobody_up_for_tokens(sequence: Sequence, cache: CacheManager) -> bool:
        pending, sequence.num_pending_tokens = sequence.num_pending_tokens, 0
        found = is_held_up(sequence, cache)
        sequence.num_pending_tokens = pending
        return found

    monkeypatch.setattr(admitter, "is_held_up", hold_nobody_up_for_tokens)
    expect_a_find()


def test_going_past_the_most_tokens_that_are_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is ahead is planned by another bound than the one that ends a sequence."""
    add = Scheduler.add

    def add_with_room(self: Scheduler, asked: object) -> tuple[Sequence, ...]:
        sequences = add(self, asked)  # type: ignore[arg-type]
        for sequence in sequences:
            sequence.max_num_tokens += 1
        return sequences

    monkeypatch.setattr(Scheduler, "add", add_with_room)
    expect_a_find()


def test_letting_go_of_a_block_too_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """A window is taken for a block and a token shorter than it is."""
    unseen_blocks = AttentionWindow.unseen_blocks

    def too_many(self: AttentionWindow, position: int, block_size: int) -> range:
        return unseen_blocks(self, position + 1 + block_size, block_size)

    monkeypatch.setattr(AttentionWindow, "unseen_blocks", too_many)
    expect_a_find()


def test_letting_go_before_a_step_is_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks go when a step is decided, while others still read them."""
    reserve = CacheManager.reserve

    def reserve_and_let_go(self: CacheManager, table: BlockTable, start: int, stop: int) -> object:
        copies = reserve(self, table, start, stop)
        if copies is not None:
            let_go(self._blocks, table, stop, self.block_size)
        return copies

    monkeypatch.setattr(CacheManager, "reserve", reserve_and_let_go)
    expect_a_find()
