"""Copy-on-write: a block that others can see is not written, a copy of it is."""

from __future__ import annotations

from pagoda.cache.block import BlockCopy, BlockTable
from pagoda.cache.prefix_pool import PrefixPool
from pagoda.cache.slots import num_blocks_for


def shared_places(
    blocks: PrefixPool, table: BlockTable, start: int, stop: int, block_size: int
) -> list[int]:
    """Where in the table the blocks stand that writing positions `start` to `stop - 1` would change
    and that others can see."""
    first = start // block_size * table.num_groups
    last = num_blocks_for(stop, block_size) * table.num_groups
    held = enumerate(table.block_ids[first:last], first)
    return [place for place, block_id in held if blocks.is_shared(block_id)]


def make_private(blocks: PrefixPool, table: BlockTable, place: int) -> BlockCopy:
    """Put a block of the table's own in the place of one that others can see: `blocks` and `table`
    change. The copy that is returned is to be carried out."""
    target = blocks.allocate(table.origin)
    source = table.replace(place, target)
    blocks.release(source)
    return BlockCopy(source, target)
