"""Letting go of blocks: of those that no row sees any more, and of all that a sequence had."""

from __future__ import annotations

from pagoda.cache.block import HOLE, BlockTable
from pagoda.cache.hinted import Mark
from pagoda.cache.prefix_pool import PrefixPool
from pagoda.cache.search import found_of_turn
from pagoda.cache_hint import CacheHint


def let_go(blocks: PrefixPool, table: BlockTable, position: int, block_size: int) -> None:
    """Drop a table's blocks that no row from `position` on sees; changes both."""
    for index, is_likely in table.blocks_behind(position, block_size):
        blocks.release(table.replace(index, HOLE), is_passed=not is_likely)
    table.move_to(max(position, table.position), block_size)


def make_room(blocks: PrefixPool, table: BlockTable, num_blocks: int, block_size: int) -> bool:
    """Let go of what only others might begin with, if that frees so many blocks.

    False says that it would not, and that nothing has changed.
    """
    position = table.num_settled - 1
    behind = table.blocks_behind(position, block_size)
    held = [table.block_ids[index] for index, _ in behind]
    if sum(blocks.pool.ref_counts[block_id] == 1 for block_id in held) < num_blocks:
        return False
    let_go(blocks, table, position, block_size)
    return True


def drop(blocks: PrefixPool, table: BlockTable, hint: CacheHint | None, block_size: int) -> None:
    """Drop all of a table's references, tail first, and empty it; changes both.

    What a next turn needs behind windows outlasts the tail. `hint`: of the table's request.
    """
    is_wanted = hint != CacheHint.NONE
    turn = found_of_turn(blocks.index, table, block_size) if is_wanted else []
    held = [block_id for block_id in turn if not blocks.pool.is_cached(block_id)]
    for block_id in held:
        blocks.acquire(block_id)
    if hint is not None and is_wanted:
        for block_id in (*turn, *_published(blocks, table)):
            blocks.mark(block_id, Mark(CacheHint(hint), table.origin.tenant))
    num_found = table.num_found * table.num_groups
    for place in reversed(range(len(table.block_ids))):
        if table.block_ids[place] != HOLE:
            is_passed = not is_wanted and place >= num_found
            blocks.release(table.block_ids[place], is_passed=is_passed)
    for block_id in held:
        blocks.release(block_id)
    for block_id in turn:
        if block_id not in held:
            blocks.pool.renew(block_id)
    table.clear()
    table.move_to(0, block_size)
    table.is_freed = True


def _published(blocks: PrefixPool, table: BlockTable) -> list[int]:
    """Blocks in which others find what a table holds, the last first: its own, or equal ones that
    were published before."""
    places = range(table.num_committed * table.num_groups - 1, -1, -1)
    numbered = (divmod(each, table.num_groups) for each in places if table.block_ids[each] != HOLE)
    found = (blocks.index.find(table.keys[number], group) for number, group in numbered)
    return [block_id for block_id in found if block_id is not None]
