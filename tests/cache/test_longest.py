"""The longest length that fits is the last before the first that does not."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pagoda.cache.longest import longest_that_fits


@given(st.integers(0, 2**20), st.integers(0, 2**20))
def test_it_is_the_last_that_fits_and_never_more_than_there_may_be(last: int, at_most: int) -> None:
    asked: list[int] = []

    def fits(length: int) -> bool:
        asked.append(length)
        return length <= last

    assert longest_that_fits(fits, at_most) == min(last, at_most)
    assert len(asked) <= at_most.bit_length()
    assert all(0 < length <= at_most for length in asked)
