"""How much of a prefix is worth loading, against every other choice there is."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagoda.tiers.gate import NOTHING, Decision, leading_worth_loading


@dataclass(frozen=True)
class Found:
    num_rows: int
    seconds: float | None


def num_rows(offers: list[tuple[int, float | None]], row_s: float | None) -> int:
    return leading_worth_loading([Found(*each) for each in offers], row_s).num_rows


@pytest.mark.parametrize(
    ("offers", "row_s", "expected"),
    [
        ([], 0.01, 0),
        ([(40, 0.1)], 0.01, 40),
        ([(40, 0.5)], 0.01, 0),
        ([(40, 0.4)], 0.01, 0),  # as long as computing: nothing is saved
        ([(40, 0.1), (20, 0.1), (20, 1.8)], 0.01, 60),  # the next tier is slow
        ([(40, 0.5), (60, 0.1)], 0.01, 100),  # a slow one is worth it for what comes after
        ([(40, 0.5), (60, 0.55)], 0.01, 0),
        ([(40, 0.1), (20, None), (20, 0.0)], 0.01, 40),  # nothing is known of the next tier
        ([(40, None)], 0.01, 0),
        ([(40, 0.1)], None, 0),  # nothing is known of computing
        ([(40, 0.1)], 0.0, 0),
    ],
)
def test_cases(offers: list[tuple[int, float | None]], row_s: float | None, expected: int) -> None:
    assert num_rows(offers, row_s) == expected


def test_a_decision_tells_its_figures() -> None:
    decision = leading_worth_loading([Found(40, 0.1), Found(20, 0.1), Found(20, 1.8)], 0.01)
    assert decision == Decision(60, 2, pytest.approx(0.2), pytest.approx(0.6))
    assert leading_worth_loading([Found(1, 2.0)], 1.0) == NOTHING


seconds = st.one_of(st.none(), st.floats(0, 10))
found = st.lists(st.builds(Found, st.integers(1, 1000), seconds), max_size=8)


@given(found, st.floats(0, 0.1))
def test_no_choice_saves_more_and_none_is_slower_than_computing(
    offers: list[Found], row_s: float
) -> None:
    chosen = leading_worth_loading(offers, row_s)
    saved = chosen.compute_s - chosen.load_s
    assert saved >= 0
    rows, load_s = 0, 0.0
    for number, each in enumerate(offers, start=1):
        if each.seconds is None:
            assert chosen.num_offers < number
            return
        rows, load_s = rows + each.num_rows, load_s + each.seconds
        assert saved >= rows * row_s - load_s
        if number == chosen.num_offers:
            assert (chosen.num_rows, chosen.load_s) == (rows, load_s)
            assert load_s < rows * row_s


@given(found, st.floats(0, 0.1), st.floats(1, 10))
def test_a_slower_machine_never_loads_less(offers: list[Found], row_s: float, times: float) -> None:
    quick, slow = (leading_worth_loading(offers, each) for each in (row_s, times * row_s))
    assert quick.num_rows <= slow.num_rows
