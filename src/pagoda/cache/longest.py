"""The longest sequence that fits, wherever what is needed only grows with its length."""

from __future__ import annotations

from collections.abc import Callable


def longest_that_fits(fits: Callable[[int], bool], at_most: int) -> int:
    """The largest length up to `at_most` that `fits`; 0 where not even 1 does.

    `fits` says no of whatever is longer than a length that it says no of.
    """
    low, high = 0, at_most
    while low < high:
        middle = (low + high + 1) // 2
        if fits(middle):
            low = middle
        else:
            high = middle - 1
    return low
