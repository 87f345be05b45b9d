"""Stop strings against a plain search of the whole text."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pagoda.engine.stop_strings import StopMatch, StopStrings

LETTERS = st.text("ab", max_size=30)
STOPS = st.lists(st.text("ab", min_size=1, max_size=6), max_size=4)


def first_stop(text: str, stops: list[str], may_stop_after: int = 0) -> tuple[int, str] | None:
    """Where the first stop string ends and which it is; one that ends sooner does not count."""
    for end in range(may_stop_after + 1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            return end, max(complete, key=len)
    return None


def num_undecided(text: str, stops: list[str]) -> int:
    """The longest end of `text` that is the beginning of a stop string, but not a whole one."""
    beginnings = [stop[:length] for stop in stops for length in range(1, len(stop))]
    return max((len(b) for b in beginnings if text.endswith(b)), default=0)


@given(LETTERS, STOPS, st.lists(st.integers(1, 5), min_size=1))
def test_the_first_to_end_is_found_in_any_pieces(
    text: str, stops: list[str], sizes: list[int]
) -> None:
    search = StopStrings(stops)
    expected = first_stop(text, stops)
    start = 0
    while start < len(text):
        size = sizes[start % len(sizes)]
        match = search.feed(text[start : start + size])
        if match is not None:
            assert (start + match.end, match.stop) == expected
            return
        start = min(start + size, len(text))
        assert search.num_held == num_undecided(text[:start], stops)
    assert expected is None


@given(LETTERS, LETTERS, STOPS)
def test_matches_are_passed_over_until_they_count(
    passed: str, counted: str, stops: list[str]
) -> None:
    search = StopStrings(stops)
    assert search.feed(passed, may_stop=False) is None
    expected = first_stop(passed + counted, stops, may_stop_after=len(passed))
    match = search.feed(counted)
    found = None if match is None else (len(passed) + match.end, match.stop)
    assert found == expected


def test_of_two_that_end_together_the_longer_counts() -> None:
    assert StopStrings(["b", "ab"]).feed("ab") == StopMatch("ab", 2)
    assert StopStrings(["ab", "b"]).feed("ab") == StopMatch("ab", 2)


def test_without_stops_nothing_is_held() -> None:
    search = StopStrings([])
    assert search.feed("anything") is None
    assert search.num_held == 0
