"""When a tier that fails is left alone, and when it is tried again."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pagoda.tiers.breaker import (
    FIRST_WAIT_S,
    LONGEST_WAIT_S,
    NUM_FAILURES,
    Breaker,
    BreakerState,
)

RECOVERS_S = 10.0
TICK_S = 0.25
"""How often somebody asks whether a probe may be made."""


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def opened(clock: Clock) -> Breaker:
    breaker = Breaker(clock)
    for _ in range(NUM_FAILURES):
        assert breaker.is_closed
        breaker.failed()
    return breaker


def test_it_opens_with_the_fifth_failure_in_a_row() -> None:
    breaker = Breaker(Clock())
    for _ in range(3):
        for _ in range(NUM_FAILURES - 1):
            breaker.failed()
        assert breaker.is_closed
        breaker.succeeded()
    for _ in range(NUM_FAILURES):
        breaker.failed()
    assert breaker.state is BreakerState.OPEN
    assert not breaker.allows()


def test_probes_wait_twice_as_long_each_time() -> None:
    clock = Clock()
    breaker = opened(clock)
    waits = []
    for _ in range(7):
        began = clock.now
        while not breaker.allows():
            clock.now += 0.125
        waits.append(clock.now - began)
        assert breaker.state is BreakerState.HALF_OPEN
        assert not breaker.allows(), "one probe at a time"
        breaker.failed()
    assert waits == [0.5, 1, 2, 4, 8, 8, 8]
    clock.now += LONGEST_WAIT_S
    assert breaker.allows()
    breaker.succeeded()
    assert breaker.is_closed
    assert breaker.allows()


def test_calls_that_were_under_way_do_not_make_it_wait_longer() -> None:
    clock = Clock()
    breaker = opened(clock)
    for _ in range(20):
        breaker.failed()
    clock.now += FIRST_WAIT_S
    assert breaker.allows()


def test_a_probe_that_never_comes_back_keeps_nobody_from_the_next() -> None:
    clock = Clock()
    breaker = opened(clock)
    for _ in range(3):
        clock.now += FIRST_WAIT_S
        assert breaker.allows()
        assert not breaker.allows()


@given(st.lists(st.tuples(st.floats(0, 30), st.booleans()), max_size=60))
def test_a_store_that_is_well_again_is_found_within_ten_seconds(
    past: list[tuple[float, bool]],
) -> None:
    """Whatever has happened: calls that went well or did not, some time apart."""
    clock = Clock()
    breaker = Breaker(clock)
    for wait_s, went_well in past:
        clock.now += wait_s
        if breaker.allows():
            (breaker.succeeded if went_well else breaker.failed)()
    began = clock.now
    while not breaker.is_closed:
        if breaker.allows():
            breaker.succeeded()
        clock.now += TICK_S
    assert clock.now - began <= RECOVERS_S


@given(st.lists(st.booleans(), max_size=60))
def test_it_is_open_after_five_failures_and_no_earlier(went_well: list[bool]) -> None:
    breaker, num_failures = Breaker(Clock()), 0
    for each in went_well:
        if breaker.is_closed:
            (breaker.succeeded if each else breaker.failed)()
            num_failures = 0 if each else num_failures + 1
            assert breaker.is_closed == (num_failures < NUM_FAILURES)
