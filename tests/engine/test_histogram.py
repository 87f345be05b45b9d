from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from pagoda.engine.histogram import Histogram

BOUNDS = (1, 2.5, 10)


def test_a_value_that_equals_a_bound_is_not_above_it() -> None:
    histogram = Histogram(BOUNDS)
    for value in (0, 1, 1.5, 2.5, 10, 11):
        histogram.observe(value)
    assert list(histogram.cumulative()) == [(1, 2), (2.5, 4), (10, 5), (math.inf, 6)]
    assert (histogram.num_values, histogram.total) == (6, 26)


@given(st.lists(st.floats(0, 20)))
def test_buckets_are_what_counting_gives(values: list[float]) -> None:
    histogram = Histogram(BOUNDS)
    for value in values:
        histogram.observe(value)
    for bound, count in histogram.cumulative():
        assert count == sum(value <= bound for value in values)
    assert math.isclose(histogram.total, sum(values))
