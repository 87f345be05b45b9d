"""What a tier is said to take, by what it has taken."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagoda.tiers.rates import NUM_KEPT, Rates

MIB = 2**20


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def measured(
    round_trip_s: float, bytes_per_s: float, num_loads: int = NUM_KEPT, clock: Clock | None = None
) -> Rates:
    """Of a line that is always the same."""
    rates = Rates(clock or Clock())
    for _ in range(num_loads):
        rates.note_round_trip(round_trip_s)
        rates.note_load(4 * MIB, round_trip_s + 4 * MIB / bytes_per_s)
    return rates


def test_nothing_is_known_at_first() -> None:
    rates = Rates(Clock())
    assert rates.seconds(MIB) is None
    assert (rates.round_trip_s, rates.bytes_per_s) == (None, None)
    rates.note_round_trip(0.01)
    rates.note_load(0, 0.01)
    assert rates.seconds(MIB) is None, "a round trip tells nothing of bytes"
    assert rates.round_trip_s == 0.01


@given(st.floats(1e-4, 0.1), st.floats(1e6, 1e10), st.integers(0, 2**32))
def test_a_line_that_is_always_the_same_is_told_exactly(
    round_trip_s: float, bytes_per_s: float, num_bytes: int
) -> None:
    rates = measured(round_trip_s, bytes_per_s, num_loads=1)
    told = rates.seconds(num_bytes)
    assert told is not None
    transfer_s = max(4 * MIB / bytes_per_s, (round_trip_s + 4 * MIB / bytes_per_s) / 8)
    assert told == pytest.approx(round_trip_s + num_bytes * transfer_s / (4 * MIB))
    assert told >= (round_trip_s + num_bytes / bytes_per_s) * (1 - 1e-9), "never too quick"


@given(
    st.floats(1e-9, 1e3),
    st.floats(1e-9, 1e3),
    st.integers(1, 2**32),
    st.integers(0, NUM_KEPT - 1),
)
def test_one_outlier_moves_nothing(
    odd_trip_s: float, odd_load_s: float, odd_bytes: int, at: int
) -> None:
    rates = Rates(Clock())
    for number in range(NUM_KEPT):
        rates.note_round_trip(odd_trip_s if number == at else 0.001)
    for number in range(NUM_KEPT):
        if number == at:
            rates.note_load(odd_bytes, odd_load_s)
        else:
            rates.note_load(MIB, 0.011)
    assert rates.round_trip_s == 0.001
    assert rates.bytes_per_s == pytest.approx(MIB / 0.010)


@given(st.lists(st.tuples(st.integers(1, 2**30), st.floats(0, 100)), min_size=1, max_size=12))
def test_what_is_told_lies_between_what_was_measured(loads: list[tuple[int, float]]) -> None:
    rates = Rates(Clock())
    for num_bytes, seconds in loads:
        rates.note_load(num_bytes, seconds)
    speeds = [num_bytes / max(seconds, 1e-6) for num_bytes, seconds in loads[-NUM_KEPT:]]
    told = rates.bytes_per_s
    assert told is not None
    assert min(speeds) * (1 - 1e-9) <= told <= max(speeds) * (1 + 1e-9)


def test_a_line_that_has_changed_is_known_after_three_loads() -> None:
    rates = measured(0.001, 1e9)
    for _ in range(2):
        rates.note_load(MIB, 1.001)
    assert rates.bytes_per_s == pytest.approx(1e9)
    rates.note_load(MIB, 1.001)
    assert rates.bytes_per_s == pytest.approx(MIB)


def test_of_two_the_slower_counts() -> None:
    rates = Rates(Clock())
    rates.note_load(MIB, 1.0)
    rates.note_load(MIB, 0.1)
    assert rates.bytes_per_s == MIB


def test_what_is_old_counts_only_while_there_is_nothing_newer() -> None:
    clock = Clock()
    rates = measured(0.001, 1e6, clock=clock)
    clock.now = 3600.0
    assert rates.bytes_per_s == pytest.approx(1e6)
    rates.note_load(MIB, 0.001 + MIB / 1e9)
    assert rates.bytes_per_s == pytest.approx(1e9)


def test_a_short_load_does_not_look_infinitely_fast() -> None:
    rates = Rates(Clock())
    rates.note_round_trip(0.050)
    rates.note_load(1000, 0.049)  # the round trip happened to be shorter
    told = rates.seconds(1000)
    assert told is not None
    assert 0.050 < told < 0.060
