"""Blocks that others may find: announced before they are computed, published once they are full."""

from __future__ import annotations

from collections.abc import Sequence

from pagoda.cache.block import HOLE, BlockTable
from pagoda.cache.inflight import InFlightBlocks
from pagoda.cache.prefix import BlockKey
from pagoda.cache.prefix_pool import PrefixPool


def announce(
    blocks: PrefixPool, in_flight: InFlightBlocks, table: BlockTable, keys: Sequence[BlockKey]
) -> None:
    """Tell that a table is going to publish those of its blocks that cannot be found in all groups.

    keys: of the table's full blocks; none where none is ever published.
    """
    groups = range(table.num_groups)
    for key in keys[table.num_committed :]:
        if any(blocks.index.find(key, group) is None for group in groups):
            in_flight.announce(key.hash, table)


def publish(
    blocks: PrefixPool,
    in_flight: InFlightBlocks,
    table: BlockTable,
    keys: Sequence[BlockKey],
    num_full: int,
) -> None:
    """Publish a table's blocks up to number `num_full - 1`, in all groups; changes all but keys.

    keys: of the table's full blocks.
    """
    for number in range(table.num_committed, num_full):
        in_flight.withdraw(keys[number].hash, table)
        for group in range(table.num_groups):
            block_id = table.block_ids[number * table.num_groups + group]
            if block_id != HOLE:
                blocks.publish(keys[number], block_id, group, table)
    table.num_committed = num_full
    table.num_shared = max(table.num_shared, num_full)
