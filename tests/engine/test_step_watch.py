"""A step that hangs is told from one that is long, by a clock that stands still unless moved."""

from __future__ import annotations

import asyncio
import threading

import pytest
from ahead import let_run_ahead

from pagoda.engine.async_engine import AsyncEngine
from pagoda.engine.build import Model, connect
from pagoda.engine.options import EngineOptions
from pagoda.engine.step_watch import StepWatch
from pagoda.request import SamplingParams

TIMEOUT_S = 10.0
MOST_S = 100.0
"""What any step may take."""


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def step(watch: StepWatch, clock: Clock, num_tokens: int, seconds: float) -> None:
    watch.begin()
    watch.hold(num_tokens)
    clock.now += seconds
    watch.conclude()
    watch.end()


def test_no_step_no_age() -> None:
    watch = StepWatch(Clock())
    assert watch.age_s == 0
    assert watch.hung(TIMEOUT_S) is None


@pytest.mark.parametrize("num_tokens", [0, 1])
def test_a_step_may_take_the_timeout(num_tokens: int) -> None:
    clock = Clock()
    watch = StepWatch(clock)
    step(watch, clock, num_tokens=1, seconds=0.1)
    watch.begin()
    watch.hold(num_tokens)
    clock.now += TIMEOUT_S
    assert watch.age_s == TIMEOUT_S
    assert watch.hung(TIMEOUT_S) is None
    clock.now += 1
    hung = watch.hung(TIMEOUT_S)
    assert hung is not None
    assert (hung.age_s, hung.limit_s, hung.num_tokens) == (11, 10, num_tokens)
    watch.end()
    assert watch.hung(TIMEOUT_S) is None


def test_many_tokens_may_take_longer_where_few_are_slow() -> None:
    clock = Clock()
    watch = StepWatch(clock)
    for num_tokens in (1, 8, 3):
        step(watch, clock, num_tokens, num_tokens * 0.5)
    limit_s = 10 * 12 * 0.5
    assert TIMEOUT_S < limit_s < MOST_S
    watch.begin()
    watch.hold(12)
    clock.now += limit_s - 1
    assert watch.hung(TIMEOUT_S) is None
    clock.now += 2
    hung = watch.hung(TIMEOUT_S)
    assert hung is not None
    assert hung.limit_s == pytest.approx(limit_s)


def test_the_first_step_may_take_long_but_not_for_ever() -> None:
    clock = Clock()
    watch = StepWatch(clock)
    watch.begin()
    watch.hold(1)
    clock.now += MOST_S
    assert watch.hung(TIMEOUT_S) is None
    clock.now += 1
    assert watch.hung(TIMEOUT_S) is not None


def test_the_first_step_is_the_first_that_was_waited_for(tiny_model: Model) -> None:
    engine = let_run_ahead(connect(tiny_model, EngineOptions(num_gpu_blocks_override=64)))
    engine.watch = StepWatch(clock := Clock())
    for name in ("a", "b"):
        sampling = SamplingParams(temperature=0, max_tokens=2)
        engine.add(engine.intake.request(name, [1, 2, 3], sampling))
        if name == "a":
            engine.advance()  # launched, and not waited for
    engine.watch.begin()
    clock.now += MOST_S
    assert engine.watch.hung(TIMEOUT_S) is None
    engine.watch.end()
    engine.advance()
    engine.watch.begin()
    clock.now += TIMEOUT_S + 1
    assert engine.watch.hung(TIMEOUT_S) is not None


def test_a_step_that_fails_tells_nothing_of_the_pace() -> None:
    watch = StepWatch(clock := Clock())
    watch.begin()
    watch.hold(1)
    watch.end()
    watch.begin()
    clock.now += MOST_S
    assert watch.hung(TIMEOUT_S) is None


def test_a_step_that_was_slow_once_is_forgotten() -> None:
    clock = Clock()
    watch = StepWatch(clock)
    step(watch, clock, num_tokens=1, seconds=90.0)  # kernels were compiled
    watch.begin()
    watch.hold(1000)
    clock.now += MOST_S + 1
    assert watch.hung(TIMEOUT_S) is not None, "no pace allows more"
    watch.end()
    watch = StepWatch(clock)
    step(watch, clock, num_tokens=1, seconds=90.0)
    for _ in range(100):
        step(watch, clock, num_tokens=1, seconds=0.1)
    watch.begin()
    watch.hold(1)
    clock.now += TIMEOUT_S + 1
    assert watch.hung(TIMEOUT_S) is not None


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_stuck_device_is_noticed_while_it_is_stuck(tiny_model: Model) -> None:
    served = AsyncEngine(connect(tiny_model, EngineOptions(num_gpu_blocks_override=64)))
    engine, clock = served.engine, Clock()
    engine.watch = StepWatch(clock)
    execute, stuck, free = engine._runner.execute, threading.Event(), threading.Event()

    def hang(plan, drawn_last):
        stuck.set()
        free.wait()
        return execute(plan, drawn_last)

    engine._runner.execute = hang  # type: ignore[method-assign]
    served.start()
    sampling = SamplingParams(temperature=0, max_tokens=2)
    answer = served.generate([1, 2, 3], sampling, request_id="a")
    try:
        first = asyncio.ensure_future(anext(answer))
        await asyncio.to_thread(stuck.wait)
        assert served.hung_step(TIMEOUT_S) is None
        clock.now += MOST_S + 1
        hung = served.hung_step(TIMEOUT_S)
        assert hung is not None
        assert hung.num_tokens == 3
        assert "free.wait()" in served.where()
        free.set()
        outputs = [await first, *[output async for output in answer]]
        assert outputs[-1].finished
        assert served.step_age_s == 0
    finally:
        free.set()
        await served.shutdown()
