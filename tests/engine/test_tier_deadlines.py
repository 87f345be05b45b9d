"""However a tier is ill, a first token comes no later than after computing and the deadline.

Time is a clock that each turn of the engine moves on; computing takes none of it, so that what
passes until the first token is what the tier has cost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

import pytest
from tiered import MadeUpRate, all_rows

from pagoda.engine.build import Model, connect
from pagoda.engine.core import Engine
from pagoda.engine.options import EngineOptions
from pagoda.engine.transfers import wiring
from pagoda.request import SamplingParams
from pagoda.tiers.mover import TierMover
from tiers.fake_tier import FakeTier, ManualWorkers

BLOCK_SIZE = 4
PROMPT = list(range(10, 58))
ONE_TOKEN = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True)
COMPUTE_S = 0.5
TURN_S = 0.01
TIMEOUT_S = 2.0
"""Of a tier of one's own."""
ROUND_TRIP_S = 0.02


@dataclass
class Subject:
    engine: Engine
    tier: FakeTier
    workers: list[ManualWorkers]
    rate: MadeUpRate
    now: list[float] = field(default_factory=lambda: [0.0])

    def ask(self, work: Callable[[float], None]) -> tuple[float, int, list[int]]:
        """Seconds until the answer, tokens from the tier, and the answer. `work` is what the
        tier's threads do in a turn that begins so long after the request."""
        engine, began = self.engine, self.now[0]
        engine.reset_prefix_cache()
        engine.add(engine.intake.request("one", PROMPT, ONE_TOKEN))
        while True:
            outputs = engine.step()
            if outputs:
                [output] = outputs
                waited_s = self.now[0] - began
                assert engine.transfers.loads.num_under_way == 0
                return waited_s, output.num_cached_tokens, output.outputs[0].token_ids
            self.now[0] += TURN_S
            work(self.now[0] - began)

    def work(self, most: int = 1000) -> None:
        for _ in range(most):
            task = next((each for each in self.workers if each.tasks), None)
            if task is None:
                return
            task.work(1)


@pytest.fixture
def subject(tiny_model: Model, monkeypatch: pytest.MonkeyPatch) -> Iterator[Subject]:
    """Its tier has all of the prompt, and gives a block in each task."""
    now, workers, tier = [0.0], list[ManualWorkers](), FakeTier()

    def new_workers(name: str, num_threads: int) -> ManualWorkers:
        workers.append(ManualWorkers(name, num_threads))
        return workers[-1]

    monkeypatch.setattr("pagoda.tiers.rows_from_shelves.BATCH_BYTES", 1)
    own = partial(TierMover, new_workers=new_workers, probes=False, clock=lambda: now[0])
    monkeypatch.setattr(wiring, "TierMover", own)
    options = EngineOptions(kv_tier=[tier], num_gpu_blocks_override=64, block_size=BLOCK_SIZE)  # type: ignore[list-item]
    engine = connect(tiny_model, options)
    loads = engine.transfers.loads  # type: ignore[attr-defined]
    loads._gate, loads._prefill_rate, loads._clock = all_rows, MadeUpRate(COMPUTE_S), lambda: now[0]
    [place] = engine.transfers._mover._places  # type: ignore[attr-defined]
    monkeypatch.setattr(place.shelf.rates, "note_round_trip", lambda seconds: None)
    monkeypatch.setattr(place.shelf.rates, "note_load", lambda num_bytes, seconds: None)
    found = Subject(engine, tier, workers, loads._prefill_rate, now)
    found.ask(lambda at: found.work())
    while engine.tidy():
        pass
    found.work()
    type(place.shelf.rates).note_round_trip(place.shelf.rates, ROUND_TRIP_S)
    yield found
    tier.fault = None
    while engine.tidy():
        found.work()
    found.work()
    engine.close()


def test_what_comes_in_time_is_taken(subject: Subject) -> None:
    waited_s, num_cached, answer = subject.ask(lambda at: subject.work(1))
    assert num_cached == len(PROMPT) - 1
    assert waited_s <= 16 * TURN_S
    assert subject.ask(lambda at: None)[2] == answer


def nothing(subject: Subject, at: float) -> None:
    """An answer that never comes."""


def answers_alone(subject: Subject, at: float) -> None:
    """Frames never come."""
    if at < 1.5 * TURN_S:
        subject.work(1)


def answers_late(subject: Subject, at: float) -> None:
    """Just before the deadline of an answer; frames never come."""
    if abs(at - 7 * ROUND_TRIP_S) < TURN_S / 2:
        subject.work(1)


def trickles(subject: Subject, at: float) -> None:
    """A block in every tenth turn."""
    if round(at / TURN_S) % 10 == 1:
        subject.work(1)


def stops(subject: Subject, at: float) -> None:
    """After five blocks."""
    if at < 6.5 * TURN_S:
        subject.work(1)


@pytest.mark.parametrize(
    ("ill", "num_blocks"),
    [(nothing, 0), (answers_alone, 0), (answers_late, 0), (trickles, 4), (stops, 5)],
    ids=lambda each: getattr(each, "__name__", None),
)
@pytest.mark.parametrize("compute_s", [COMPUTE_S, 10.0])
def test_a_tier_that_hangs_is_given_up_at_its_deadline(
    subject: Subject,
    ill: Callable[[Subject, float], None],
    num_blocks: int,
    compute_s: float,
) -> None:
    subject.rate.compute_s = compute_s
    expected = subject.ask(lambda at: subject.work())[2]
    waited_s, num_cached, answer = subject.ask(partial(ill, subject))
    deadline_s = min(compute_s, TIMEOUT_S)
    if ill is nothing:
        deadline_s = 8 * ROUND_TRIP_S
    if compute_s == COMPUTE_S or num_blocks in (0, 5):
        assert deadline_s - TURN_S <= waited_s <= deadline_s + 2 * TURN_S
        assert num_cached == num_blocks * BLOCK_SIZE
    else:  # there is time enough for all
        assert waited_s < deadline_s
        assert num_cached == len(PROMPT) - 1
    assert answer == expected


@pytest.mark.parametrize("fault", ["error", "panic", "wrong", "missing", "torn", "half"])
def test_a_fault_that_comes_back_costs_the_turns_until_then(subject: Subject, fault: str) -> None:
    expected = subject.ask(lambda at: subject.work())[2]
    subject.tier.fault = fault
    waited_s, num_cached, answer = subject.ask(lambda at: subject.work(1))
    assert waited_s <= 5 * TURN_S
    assert (num_cached, answer) == (0, expected)


def test_a_prefix_that_would_not_pay_waits_for_a_twentieth_at_most(subject: Subject) -> None:
    expected = subject.ask(lambda at: subject.work())[2]
    [place] = subject.engine.transfers._mover._places  # type: ignore[attr-defined]
    rates = place.shelf.rates
    for _ in range(5):  # a byte takes a second
        type(rates).note_load(rates, 1, 1.0)
    subject.rate.compute_s = 15 * ROUND_TRIP_S
    num_calls = len(subject.tier.calls)
    waited_s, num_cached, answer = subject.ask(lambda at: None)
    assert (waited_s, num_cached, answer) == (0.0, 0, expected), "its answer costs more than that"
    subject.rate.compute_s = 25 * ROUND_TRIP_S
    waited_s, num_cached, answer = subject.ask(lambda at: None)
    assert waited_s <= subject.rate.compute_s / 20 + 2 * TURN_S
    assert (num_cached, answer, len(subject.tier.calls)) == (0, expected, num_calls)
