"""What a look-up finds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pagoda.tiers.names import BlockName

Row = Sequence[BlockName]
"""A block of a prefix in all groups, in their order: loaded whole, or not at all."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Rows of a prefix that follow each other and lie on one shelf."""

    shelf: int
    """Its number."""
    num_rows: int
    seconds: float | None
    """What loading them takes by the shelf's rates; None: nothing is known of it."""


def leading(segments: Sequence[Segment], num_rows: int) -> tuple[Segment, ...]:
    """The segments of the first `num_rows` rows; seconds are cut in proportion."""
    cut: list[Segment] = []
    for each in segments:
        num = min(each.num_rows, num_rows)
        if num == 0:
            break
        seconds = None if each.seconds is None else each.seconds * num / each.num_rows
        cut.append(replace(each, num_rows=num, seconds=seconds))
        num_rows -= num
    return tuple(cut)


def behind(segments: Sequence[Segment], num_rows: int) -> tuple[Segment, ...]:
    """The segments without their first `num_rows` rows; seconds are cut in proportion."""
    rest: list[Segment] = []
    for each in segments:
        num = max(0, each.num_rows - num_rows)
        num_rows -= each.num_rows - num
        if num:
            seconds = None if each.seconds is None else each.seconds * num / each.num_rows
            rest.append(replace(each, num_rows=num, seconds=seconds))
    return tuple(rest)
