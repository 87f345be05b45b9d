"""Every invariant of a cache, verified from scratch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

from pagoda.cache.block import BlockTable
from pagoda.cache.inflight import InFlightBlocks
from pagoda.cache.pool import BlockPool
from pagoda.cache.prefix import BlockKey, PrefixIndex, block_key
from pagoda.errors import IntegrityError


def check_integrity(
    pool: BlockPool, index: PrefixIndex, in_flight: InFlightBlocks, tables: Collection[BlockTable]
) -> None:
    """Compare all that is known of the blocks, in time linear in the pool.

    Raises `IntegrityError` with the first invariant that does not hold.
    """
    blank, cached = pool.blank_ids(), pool.cached_ids()
    holders = Counter(block_id for table in tables for block_id in table.block_ids)
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
    for table in tables:
        _check_table(table, published)
        _require(
            all(holders[block_id] == 1 for block_id in table.block_ids[table.num_shared :]),
            "a block that others hold is taken for a table's own",
        )


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise IntegrityError(what)


def _check_table(table: BlockTable, published: Mapping[int, BlockKey]) -> None:
    _require(len(set(table.block_ids)) == len(table.block_ids), "a table repeats a block")
    _require(table.num_committed <= len(table.block_ids), "a block is committed, not held")
    _require(
        table.num_shared == max(table.num_committed, table.num_forked),
        "blocks that others may see are counted wrong",
    )
    parent = table.root
    for key in table.keys:
        tokens = memoryview(key.tokens).cast("I").tolist()
        _require(key == block_key(parent, tokens), "the chain of hashes is broken")
        parent = key.hash
    for index, block_id in enumerate(table.block_ids):
        found = published.get(block_id)
        # A fork may share a published block of which it uses only a part, the last of its own.
        if found is not None and index < len(table.keys):
            _require(found == table.keys[index], f"block {block_id} is published as another's")
        _require(
            found is None or index < table.num_shared,
            f"block {block_id} is published and taken for a table's own",
        )
