"""The longest prefix that every group of layers can go on from.

A group of full attention needs every block of the prefix. A group with a window needs those that
the next row sees: its sinks and the end of the prefix. So a prefix may be cached for one group and
not for another, and is shortened until all agree.

    block                0 1 2 3 4 5 6 7
    full attention       x x x x x x x          at most 7
    window of 2 blocks       x x   x x          7 lacks nothing: blocks 5 and 6
    window of 2 blocks   x x x x     x          7 lacks block 5, 4 lacks nothing
                                                4 for all: the first window has blocks 2 and 3
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pagoda.cache.block import HOLE, BlockTable
from pagoda.cache.match import PrefixMatch
from pagoda.cache.prefix import BlockKey, PrefixIndex
from pagoda.cache.slots import num_blocks_for
from pagoda.cache.window import AttentionWindow


def longest_prefix(
    index: PrefixIndex,
    windows: Sequence[AttentionWindow],
    keys: Sequence[BlockKey],
    num_tokens: int,
    block_size: int,
) -> tuple[int, tuple[int, ...]]:
    """Full blocks of the longest prefix, and the ids of its blocks as `BlockTable` has them.

    keys: of all full blocks of a sequence of `num_tokens` tokens. One token is left to compute, so
    the ids may be those of one block less; blocks that the next row does not see are holes.
    """
    found: dict[int, list[int]] = {}
    num_blocks = len(keys)
    for group in sorted(range(len(windows)), key=lambda group: not windows[group].is_full):
        is_full, ids = windows[group].is_full, []
        for key in keys[:num_blocks]:
            block_id = index.find(key, group)
            if block_id is None and is_full:
                break
            ids.append(HOLE if block_id is None else block_id)
        num_blocks = len(ids)
        found[group] = ids
    before = -1
    while num_blocks != before:
        before = num_blocks
        for group, window in enumerate(windows):
            num_blocks = _shortened(found[group], window, num_blocks, num_tokens, block_size)
    position = min(num_blocks * block_size, num_tokens - 1)
    ids = [
        found[group][number] if is_seen else HOLE
        for number, group, is_seen in _places(windows, position, block_size)
    ]
    return num_blocks, tuple(ids)


def still_holds(
    index: PrefixIndex,
    windows: Sequence[AttentionWindow],
    keys: Sequence[BlockKey],
    match: PrefixMatch,
    block_size: int,
) -> bool:
    """The blocks of a match are what is cached now, and all that its next row sees."""
    places = list(_places(windows, match.num_tokens, block_size))
    if len(places) != len(match.block_ids) or len(places) > len(keys) * len(windows):
        return False
    return all(
        block_id == (index.find(keys[number], group) if is_seen else HOLE)
        for block_id, (number, group, is_seen) in zip(match.block_ids, places, strict=True)
    )


def found_of_turn(index: PrefixIndex, table: BlockTable, block_size: int) -> list[int]:
    """Published blocks behind windows that are seen where a table's turn ends."""
    places = table.blocks_of_turn(block_size)
    found = (index.find(table.keys[number], group) for number, group in places)
    return [block_id for block_id in found if block_id is not None]


def _places(
    windows: Sequence[AttentionWindow], num_tokens: int, block_size: int
) -> Iterator[tuple[int, int, bool]]:
    """Block number, group, and whether the row after `num_tokens` tokens sees it, as in a table."""
    unseen = [window.unseen_blocks(num_tokens, block_size) for window in windows]
    for number in range(num_blocks_for(num_tokens, block_size)):
        for group in range(len(windows)):
            yield number, group, number not in unseen[group]


def _shortened(
    ids: Sequence[int], window: AttentionWindow, num_blocks: int, num_tokens: int, block_size: int
) -> int:
    """The most blocks, up to `num_blocks`, after which a group has all that the next row sees."""
    if window.is_full:
        return num_blocks
    sinks = range(min(num_blocks, num_blocks_for(window.sinks, block_size)))
    num_blocks = next((number for number in sinks if ids[number] == HOLE), num_blocks)
    held_from = num_blocks  # the blocks from here to the prefix's end are all there
    while num_blocks:
        position = min(num_blocks * block_size, num_tokens - 1)
        first = window.unseen_blocks(position, block_size).stop
        while held_from > first and ids[held_from - 1] != HOLE:
            held_from -= 1
        if held_from <= first:
            return num_blocks
        num_blocks = held_from = held_from - 1
    return 0
