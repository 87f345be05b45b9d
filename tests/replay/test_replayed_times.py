"""Times of a replay beside those of the server that it replays, whose steps take what they say."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from pagoda.cache import CacheManager
from pagoda.replay.clock import Clock
from pagoda.replay.course import Percentiles
from pagoda.replay.recorded import RecordedSetting
from pagoda.replay.recorder import Recorder
from pagoda.replay.schedule_replay import ScheduleOutcome, ScheduleReplay
from pagoda.replay.step_cost import LinearCost, StepCost, StepWork
from pagoda.replay.trace_file import TraceFile
from pagoda.replay.turn_times import TurnTimes
from pagoda.request import Request
from pagoda.scheduling import Scheduler, judge
from scheduling.fake_model import request

COST = LinearCost(step=0.5, token=0.25, context=0.01)
SETTING = RecordedSetting(
    num_blocks=40, block_size=4, eviction_policy="lru", enable_prefix_caching=True,
    max_num_batched_tokens=16, max_num_seqs=4, max_model_len=100,
)  # fmt: skip


def scheduler(clock: Clock) -> Scheduler:
    cache = CacheManager(SETTING.num_blocks, SETTING.block_size, clock=clock.read)
    return Scheduler(cache, max_num_batched_tokens=16, max_num_seqs=4, max_model_len=100)


def requests(pause_s: float) -> list[Request]:
    """They come at any moment of a step, and some in the same one."""
    source, at, asked = random.Random(7), 3.0, []
    for number in range(80):
        prompt = [source.randrange(3) for _ in range(source.randint(1, 30))]
        answer = source.randint(1, 12)
        asked.append(request(str(number), prompt, max_tokens=answer, arrival_time=at))
        at += source.choice([0.0, source.expovariate(1 / pause_s), 4 * pause_s])
    return asked


class Server:
    """Takes requests between turns, as an engine's thread does, on a clock that is made up."""

    def __init__(self, path: Path) -> None:
        self.clock = Clock()
        self.first_token_s: dict[str, float] = {}
        self.end_to_end_s: dict[str, float] = {}
        self._recorder = Recorder(path, SETTING, 2**20, self.clock.read)
        self._scheduler = scheduler(self.clock)
        self._num_turns = 0

    def serve(self, asked: list[Request]) -> None:
        while asked or self._scheduler.has_unfinished:
            if not self._scheduler.has_unfinished:
                self.clock.wait_until(asked[0].arrival_time)
            while asked and asked[0].arrival_time <= self.clock.now:
                self._recorder.came(self._scheduler.add(asked.pop(0)), self._num_turns)
            self._turn()
        self._recorder.close()

    def _turn(self) -> None:
        self._recorder.turn_begins(self._num_turns)
        plan = self._scheduler.schedule()
        self.clock.wait_until(self.clock.now + COST.seconds(StepWork.of(plan)))
        self._num_turns += 1
        for one in plan.sequences:
            sequence = self._scheduler.update(one, 0 if one.samples else None)
            if sequence is None:
                continue
            name, arrival_s = sequence.request.request_id, sequence.request.arrival_time
            self.first_token_s.setdefault(name, self.clock.now - arrival_s)
            ending = judge(sequence)
            if ending is not None:
                self._scheduler.finish(sequence, ending)
                self.end_to_end_s[name] = self.clock.now - arrival_s
                self._recorder.went([sequence], self._num_turns)


def replayed(path: Path, cost: StepCost) -> ScheduleOutcome:
    clock, trace = Clock(), TraceFile(path)
    replay = ScheduleReplay(scheduler(clock), cost, max_model_len=100, by_steps=True, clock=clock)
    outcome = replay.run(trace)
    assert (trace.faults.count, outcome.num_requests) == (0, 80)
    return outcome


def assert_alike(told: Percentiles, times: dict[str, float], factor: float = 1.0) -> None:
    p50, p90, p99 = np.quantile([*times.values()], [0.5, 0.9, 0.99]) * factor
    assert (told.p50, told.p90, told.p99) == pytest.approx((p50, p90, p99), abs=1e-4)


@pytest.mark.parametrize("pause_s", [2.0, 40.0], ids=["heavy", "light"])
def test_times_are_those_of_the_server(tmp_path: Path, pause_s: float) -> None:
    path, server = tmp_path / "day.jsonl", Server(tmp_path / "day.jsonl")
    server.serve(requests(pause_s))
    outcome = replayed(path, COST)
    assert_alike(outcome.time_to_first_token, server.first_token_s)
    assert_alike(outcome.end_to_end, server.end_to_end_s)


def test_on_a_machine_twice_as_fast_all_of_it_takes_half(tmp_path: Path) -> None:
    """What was under way when a request came, too; nobody waits for anybody to come."""
    path, server = tmp_path / "day.jsonl", Server(tmp_path / "day.jsonl")
    server.serve(requests(pause_s=1.0))
    outcome = replayed(path, LinearCost(step=0.25, token=0.125, context=0.005))
    assert_alike(outcome.time_to_first_token, server.first_token_s, 0.5)
    assert_alike(outcome.end_to_end, server.end_to_end_s, 0.5)


def test_moments_are_told_by_their_place_among_turns() -> None:
    turns = TurnTimes()
    assert turns.place_of(3.0, num_turns=0, now=5.0) == 0
    turns.begin(0, 10.0)
    turns.begin(1, 20.0)
    turns.begin(1, 24.0)  # nothing was done before
    assert turns.place_of(26.0, num_turns=2, now=32.0) == 1.25
    assert turns.place_of(32.0, num_turns=2, now=32.0) == 2
    assert turns.place_of(17.0, num_turns=2, now=32.0) == 0.5
    assert turns.place_of(1.0, num_turns=2, now=32.0) == 0
    other = TurnTimes()
    other.begin(0, 0.0)
    other.begin(1, 1.0)
    assert other.time_of(1.25, num_turns=2, now=2.0) == 1.25
    assert other.time_of(2.0, num_turns=2, now=2.0) == 2.0
    for turn in range(2, 50):
        other.begin(turn, float(turn))
    assert other.time_of(3.5, num_turns=50, now=50.0) == 34.0, "only the last turns are known"
