"""Letting go of blocks that no row of a sequence sees any more."""

from __future__ import annotations

from pagoda.cache.block import HOLE, BlockTable
from pagoda.cache.prefix_pool import PrefixPool


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
