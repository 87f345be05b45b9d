"""Every invariant of a cache, verified from scratch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

from pagoda.cache.block import HOLE, BlockTable
from pagoda.cache.inflight import InFlightBlocks
from pagoda.cache.prefix import BlockKey, PrefixIndex
from pagoda.cache.prefix_pool import PrefixPool
from pagoda.errors import IntegrityError


def check_integrity(
    blocks: PrefixPool,
    in_flight: InFlightBlocks,
    tables: Collection[BlockTable],
    block_size: int,
) -> None:
    """Compare all that is known of the blocks, in time linear in the pool.

    Raises `IntegrityError` with the first invariant that does not hold.
    """
    pool, index = blocks.pool, blocks.index
    blank, cached = pool.blank_ids(), pool.cached_ids()
    holders = Counter(
        block_id for table in tables for block_id in table.block_ids if block_id != HOLE
    )
    for block_id, count in enumerate(pool.ref_counts):
        _require(count == holders[block_id], f"block {block_id}: {count} references counted, "
                 f"{holders[block_id]} tables hold it")  # fmt: skip
    free = Counter(blank) + Counter(cached)
    _require(max(free.values(), default=1) == 1, "a block is free twice")
    _require(free.keys().isdisjoint(holders), "a block is free and held")
    _require(len(free) + len(holders) == pool.num_blocks, "a block is lost")
    _require(index.is_consistent(), "the index's two directions differ")
    published = index.items()
    indexed = published.keys()
    _require(indexed.isdisjoint(blank), "a blank block is indexed")
    _require(indexed >= set(cached), "a cached block cannot be found")
    _require(in_flight.owners() <= set(tables), "a block is awaited from nobody")
    _check_accounts(blocks, tables, cached)
    for table in tables:
        _check_table(table, index, published)
        _check_holes(table, block_size)
        own = table.block_ids[table.num_shared * table.num_groups :]
        _require(
            all(block_id == HOLE or holders[block_id] == 1 for block_id in own),
            "a block that others hold is taken for a table's own",
        )


def _check_accounts(
    blocks: PrefixPool, tables: Collection[BlockTable], cached: Collection[int]
) -> None:
    """Every block is its holders' tenant's, or was when it was held, and is counted once."""
    tenant_of = blocks.accounts.tenant_of
    held = {
        block_id: table.origin.tenant
        for table in tables
        for block_id in table.block_ids
        if block_id != HOLE
    }
    for block_id, tenant in held.items():
        _require(tenant_of(block_id) == tenant, f"block {block_id} is another tenant's")
    num_held, num_cached = Counter(held.values()), Counter(map(tenant_of, cached))
    _require(None not in num_cached, "a cached block is nobody's")
    for tenant, holding in blocks.accounts.holdings().items():
        counted = (holding.num_held, holding.num_cached)
        _require(
            counted == (num_held[tenant], num_cached[tenant]),
            f"blocks of a tenant: {counted} held and cached counted, "
            f"{num_held[tenant], num_cached[tenant]} there",
        )
    num_owned = sum(tenant_of(block_id) is not None for block_id in range(blocks.pool.num_blocks))
    _require(num_owned == len(held) + len(cached), "a blank block is somebody's")
    _check_partitions(blocks, held, cached)


def _check_partitions(blocks: PrefixPool, held: Mapping[int, str], cached: Collection[int]) -> None:
    """Blocks lie where their tenant's quota is kept, which has no more than its cap."""
    partitions, tenant_of = blocks.pool.partitions, blocks.accounts.tenant_of
    num_held = Counter(id(partitions.of(tenant)) for tenant in held.values())
    for partition in partitions:
        _require(partition.num_held == num_held[id(partition)], "blocks of a quota are miscounted")
        _require(partition.cached.is_consistent(), "cached blocks are miscounted")
        is_findable = blocks.index.items().keys() >= partition.cached.hinted.marked
        _require(is_findable, "a block that cannot be found is hinted at")
        num_blocks, cap = partition.num_held + len(partition.cached), partition.quota.cap
        _require(cap is None or num_blocks <= cap, "a tenant has more blocks than its cap")
        own = (partitions.of(str(tenant_of(block_id))) for block_id in partition.cached)
        _require(all(each is partition for each in own), "a block is cached for another's quota")
    for block_id in (*held, *cached):
        own_partition = partitions.of(str(tenant_of(block_id)))
        _require(partitions.of_block(block_id) is own_partition, "a block is in another's quota")


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise IntegrityError(what)


def _check_table(table: BlockTable, index: PrefixIndex, published: Mapping[int, BlockKey]) -> None:
    held = [block_id for block_id in table.block_ids if block_id != HOLE]
    _require(len(set(held)) == len(held), "a table repeats a block")
    _require(len(table.block_ids) == len(table) * table.num_groups, "a group lacks a block")
    _require(table.num_committed <= len(table), "a block is committed, not held")
    _require(
        table.num_shared == max(table.num_committed, table.num_forked),
        "blocks that others may see are counted wrong",
    )
    parent = table.root
    for key in table.keys:
        _require(key.follows(parent), "the chain of hashes is broken")
        parent = key.hash
    for place, block_id in enumerate(table.block_ids):
        number, group = divmod(place, table.num_groups)
        found = published.get(block_id)
        # A fork may share a published block of which it uses only a part, the last of its own.
        if found is not None and number < len(table.keys):
            _require(
                (found, index.group_of(block_id)) == (table.keys[number], group),
                f"block {block_id} is published as another's",
            )
        _require(
            found is None or number < table.num_shared,
            f"block {block_id} is published and taken for a table's own",
        )


def _check_holes(table: BlockTable, block_size: int) -> None:
    """Whatever a row from the table's position on sees is held, and nothing else."""
    for group, window in enumerate(table.windows):
        unseen = window.unseen_blocks(table.position, block_size)
        for number, block_id in enumerate(table.block_ids[group :: table.num_groups]):
            if number in unseen:
                _require(block_id == HOLE, f"block {block_id} is behind its window and held")
            else:
                _require(block_id != HOLE, f"block {number} of a table was let go too early")
