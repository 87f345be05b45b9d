"""Stop strings against a plain search of the whole text."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pagoda.engine.stop_strings import StopMatch, StopString, StopStrings

LETTERS = st.text("ab", max_size=30)
STOPS = st.lists(st.text("ab", min_size=1, max_size=6), max_size=4)


def search_for(stops: list[str]) -> StopStrings:
    return StopStrings([StopString(stop) for stop in stops])


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
    search = search_for(stops)
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
    search = search_for(stops)
    assert search.feed(passed, may_stop=False) is None
    expected = first_stop(passed + counted, stops, may_stop_after=len(passed))
    match = search.feed(counted)
    found = None if match is None else (len(passed) + match.end, match.stop)
    assert found == expected


def test_of_two_that_end_together_the_longer_counts() -> None:
    assert search_for(["b", "ab"]).feed("ab") == StopMatch("ab", 2)
    assert search_for(["ab", "b"]).feed("ab") == StopMatch("ab", 2)


def test_without_stops_nothing_is_held() -> None:
    search = search_for([])
    assert search.feed("anything") is None
    assert search.num_held == 0


@given(STOPS, LETTERS, LETTERS)
def test_searches_that_share_their_stop_strings_go_their_own_ways(
    stops: list[str], text: str, other: str
) -> None:
    shared = [StopString(stop) for stop in stops]
    first, second = StopStrings(shared), StopStrings(shared)
    alone = search_for(stops).feed(text), search_for(stops).feed(other)
    assert (first.feed(text), second.feed(other)) == alone


def test_a_stop_string_is_prepared_as_far_as_a_text_comes_up_to_it() -> None:
    """So a request with 64 long ones costs nothing before it says the beginning of one."""

    class Counted(str):
        num_looks = 0

        def __getitem__(self, index: object) -> str:
            Counted.num_looks += 1
            return super().__getitem__(index)  # type: ignore[index]

    stop = StopString(Counted("a" * 1024))
    for _ in range(128):
        StopStrings([stop]).feed("aaab")
    assert Counted.num_looks < 128 * 20
