"""The cache as its users see it: sequences take blocks, fill them, publish them and let go.

    table = cache.open(cache_salt="…")           a sequence, no blocks yet
    match = cache.match(table, tokens)           what of it is already there
    cache.acquire(table, tokens, match)          hold that, and announce the rest
    copies = cache.reserve(table, start, stop)   make room to write positions start … stop - 1
    cache.commit(table, tokens, num_computed)    publish the blocks that are full by now
    cache.free(table)                            let go of everything, tail first

What a sequence's table looks like in mid-prefill, block_size 4:

    tokens     |  0 …  3 |  4 …  7 |  8 … 11 | 12 … 15 | 16 17
    block         from a hit          computed   reserved, being written
                  shared, indexed     indexed    private
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from pagoda.cache.block import BlockCopy, BlockTable, num_blocks_for
from pagoda.cache.eviction import LRU, EvictionPolicy
from pagoda.cache.inflight import InFlightBlocks
from pagoda.cache.pool import BlockPool
from pagoda.cache.prefix import BlockHash, BlockKey, PrefixIndex, block_key, root_hash
from pagoda.errors import IntegrityError, InvalidOptionError


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """What of a sequence is already in the cache."""

    block_ids: tuple[int, ...]
    num_tokens: int
    """Tokens whose K and V need not be computed; always fewer than the sequence has."""
    in_flight: BlockHash | None = None
    """The next block, if another sequence is computing it right now and waiting would pay."""


NO_MATCH = PrefixMatch((), 0)


@dataclass(frozen=True, slots=True)
class CacheStats:
    """Counts since the start, and the state of the pool now."""

    num_blocks: int
    block_size: int
    """Tokens in a block."""
    enable_prefix_caching: bool
    num_free_blocks: int
    num_cached_blocks: int
    """Free blocks whose content can still be found."""
    num_indexed_blocks: int
    prefix_queries: int
    """Tokens that were looked up when their sequence began."""
    prefix_hits: int
    """Tokens of those that were found."""
    allocations: int
    evictions: int
    commits: int
    copies_on_write: int

    @property
    def usage(self) -> float:
        """Share of the pool that sequences hold, 0 to 1."""
        return 1 - self.num_free_blocks / self.num_blocks


@dataclass(slots=True)
class _Counts:
    prefix_queries: int = 0
    prefix_hits: int = 0
    allocations: int = 0
    evictions: int = 0
    commits: int = 0
    copies_on_write: int = 0


class CacheManager:
    """A paged, prefix-shared KV cache's bookkeeping. It knows ids and tokens, never arrays."""

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        enable_prefix_caching: bool = True,
        codec: str = "",
        eviction: EvictionPolicy | None = None,
    ) -> None:
        """`codec` names how K and V are stored: blocks stored differently never match."""
        if block_size < 1:
            raise InvalidOptionError("block_size", block_size, "must be at least 1")
        self.block_size = block_size
        self.enable_prefix_caching = enable_prefix_caching
        self._codec = codec
        self._in_flight = InFlightBlocks()
        self._pool = BlockPool(
            num_blocks, LRU() if eviction is None else eviction, self._forget_evicted
        )
        self._index = PrefixIndex(num_blocks)
        self._tables: set[BlockTable] = set()
        self._counts = _Counts()

    # ---- a sequence's life -------------------------------------------------------------------

    def open(self, *, tenant: str = "", cache_salt: str = "") -> BlockTable:
        """A table without blocks, for a sequence that shares with its tenant and salt alone."""
        root = root_hash(tenant=tenant, cache_salt=cache_salt, codec=self._codec)
        return BlockTable(root)

    def match(self, table: BlockTable, tokens: Sequence[int]) -> PrefixMatch:
        """The longest prefix of `tokens` that is cached. Changes nothing but `table.keys`.

        One token is always left to compute, because its output is what comes next: where every
        block is found, the last one is shared up to its last token and copied on write.
        """
        if not self.enable_prefix_caching:
            return NO_MATCH
        block_ids: list[int] = []
        in_flight = None
        for key in self._keys(table, tokens):
            block_id = self._index.find(key)
            if block_id is None:
                in_flight = key.hash if key.hash in self._in_flight else None
                break
            block_ids.append(block_id)
        num_tokens = min(len(block_ids) * self.block_size, len(tokens) - 1)
        del block_ids[num_blocks_for(num_tokens, self.block_size) :]
        return PrefixMatch(tuple(block_ids), num_tokens, in_flight)

    def is_in_flight(self, block_hash: BlockHash) -> bool:
        """Another sequence is still going to publish this block."""
        return block_hash in self._in_flight

    def num_unheld(self, match: PrefixMatch) -> int:
        """Blocks of `match` that nobody holds: acquiring them takes them from the free ones."""
        return sum(self._pool.is_cached(block_id) for block_id in match.block_ids)

    def acquire(
        self, table: BlockTable, tokens: Sequence[int], match: PrefixMatch, *, counted: bool = True
    ) -> None:
        """Hold the blocks of `match` and announce the full blocks that have yet to be computed.

        `table` holds no blocks before. A sequence that resumes finds its own blocks again, which
        says nothing about sharing: it passes `counted=False`.
        """
        assert not table.block_ids, "the table already holds blocks"
        for block_id in match.block_ids:
            self._pool.acquire(block_id)
        table.extend(match.block_ids)
        table.num_committed = table.num_shared = len(match.block_ids)
        self._tables.add(table)
        if not self.enable_prefix_caching:
            return
        for key in self._keys(table, tokens)[table.num_committed :]:
            if self._index.find(key) is None:
                self._in_flight.announce(key.hash, table)
        if counted:
            self._counts.prefix_queries += len(tokens)
            self._counts.prefix_hits += match.num_tokens

    @property
    def num_free_blocks(self) -> int:
        """Blocks that `reserve` can still give out."""
        return self._pool.num_free

    def reserve(self, table: BlockTable, start: int, stop: int) -> tuple[BlockCopy, ...] | None:
        """Make the slots of positions `start` to `stop - 1` writable.

        Appends blocks, and replaces a block that is shared or published by a private copy. The
        copies returned must be carried out before anything is written; all of a step's at once,
        reading every source before writing a target. None says that too few blocks are free, and
        that nothing has changed.
        """
        size = self.block_size
        if stop <= len(table.block_ids) * size and start >= table.num_shared * size:
            return ()  # nearly always while a sequence decodes
        num_new, unwritable = self._num_new(table, stop), self._unwritable(table, start, stop)
        if num_new + len(unwritable) > self._pool.num_free:
            return None
        copies = tuple(self._make_private(table, index) for index in unwritable)
        table.extend([self._allocate() for _ in range(num_new)])
        self._tables.add(table)
        self._counts.copies_on_write += len(copies)
        return copies

    def commit(self, table: BlockTable, tokens: Sequence[int], num_computed: int) -> None:
        """Publish the blocks that are full once `num_computed` of `tokens` are in the cache."""
        num_full = num_computed // self.block_size
        if num_full <= table.num_committed or not self.enable_prefix_caching:
            return
        keys = self._keys(table, tokens)
        for index in range(table.num_committed, num_full):
            self._in_flight.withdraw(keys[index].hash, table)
            if self._index.insert(keys[index], table.block_ids[index]):
                self._counts.commits += 1
        table.num_committed = num_full
        table.num_shared = max(table.num_shared, num_full)

    def fork(self, table: BlockTable, num_tokens: int) -> BlockTable:
        """A second table over the blocks of the first `num_tokens` tokens.

        Both may write on: whoever writes into a block that both hold gets a copy of its own.
        """
        child = BlockTable(table.root)
        child.keys = table.keys[: num_tokens // self.block_size]
        child.extend(table.block_ids[: num_blocks_for(num_tokens, self.block_size)])
        child.num_committed = min(table.num_committed, len(child.keys))
        child.num_shared = len(child.block_ids)
        table.num_shared = max(table.num_shared, child.num_shared)
        for block_id in child.block_ids:
            self._pool.acquire(block_id)
        self._tables.add(child)
        return child

    def free(self, table: BlockTable) -> None:
        """Drop all of a table's references, tail first; published blocks stay findable."""
        for key in table.keys[table.num_committed :]:
            self._in_flight.withdraw(key.hash, table)
        for block_id in reversed(table.block_ids):
            self._release(block_id)
        table.clear()
        self._tables.discard(table)

    def forget(self) -> None:
        """Forget every published block; sequences keep what they hold."""
        self._pool.forget_cached()
        self._index.clear()

    # ---- looking at it -----------------------------------------------------------------------

    def stats(self) -> CacheStats:
        """Counts and state as of now."""
        return CacheStats(
            num_blocks=self._pool.num_blocks,
            block_size=self.block_size,
            enable_prefix_caching=self.enable_prefix_caching,
            num_free_blocks=self._pool.num_free,
            num_cached_blocks=self._pool.num_cached,
            num_indexed_blocks=len(self._index),
            **asdict(self._counts),
        )

    def check_integrity(self) -> None:
        """Verify every invariant from scratch, in time linear in the pool.

        Raises `IntegrityError` with the first one that does not hold.
        """
        blank, cached = self._pool.blank_ids(), self._pool.cached_ids()
        holders = Counter(block_id for table in self._tables for block_id in table.block_ids)
        for block_id, count in enumerate(self._pool.ref_counts):
            _require(count == holders[block_id], f"block {block_id}: {count} references counted, "
                     f"{holders[block_id]} tables hold it")  # fmt: skip
        free = Counter(blank) + Counter(cached)
        _require(max(free.values(), default=1) == 1, "a block is free twice")
        _require(free.keys().isdisjoint(holders), "a block is free and held")
        _require(len(free) + len(holders) == self._pool.num_blocks, "a block is lost")
        _require(self._index.is_consistent(), "the index's two directions differ")
        published = self._index.items()
        indexed = published.keys()
        _require(indexed.isdisjoint(blank), "a blank block is indexed")
        _require(indexed >= set(cached), "a cached block cannot be found")
        _require(self._in_flight.owners() <= self._tables, "a block is awaited from nobody")
        for table in self._tables:
            _check_table(table, published)
            _require(
                all(holders[block_id] == 1 for block_id in table.block_ids[table.num_shared :]),
                "a block that others hold is taken for a table's own",
            )

    # ---- inside ------------------------------------------------------------------------------

    def _keys(self, table: BlockTable, tokens: Sequence[int]) -> list[BlockKey]:
        """The keys of all full blocks of `tokens`, computing those that are new."""
        size, keys = self.block_size, table.keys
        for index in range(len(keys), len(tokens) // size):
            parent = keys[-1].hash if keys else table.root
            keys.append(block_key(parent, tokens[index * size : (index + 1) * size]))
        return keys

    def _num_new(self, table: BlockTable, stop: int) -> int:
        """Blocks that the table lacks to cover the positions up to `stop - 1`."""
        return max(num_blocks_for(stop, self.block_size) - len(table.block_ids), 0)

    def _unwritable(self, table: BlockTable, start: int, stop: int) -> list[int]:
        """Indices of blocks the table holds, that are to be written and that others can see."""
        first, last = start // self.block_size, num_blocks_for(stop, self.block_size)
        return [
            index
            for index, block_id in enumerate(table.block_ids[first:last], first)
            if self._pool.ref_counts[block_id] > 1 or block_id in self._index
        ]

    def _make_private(self, table: BlockTable, index: int) -> BlockCopy:
        """Put a block of the table's own in the place of one that others can see."""
        source, target = table.block_ids[index], self._allocate()
        table.replace(index, target)
        self._release(source)
        return BlockCopy(source, target)

    def _allocate(self) -> int:
        self._counts.allocations += 1
        return self._pool.allocate()

    def _release(self, block_id: int) -> None:
        self._pool.release(block_id, keep=block_id in self._index)

    def _forget_evicted(self, block_id: int) -> None:
        self._index.remove(block_id)
        self._counts.evictions += 1


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise IntegrityError(what)


def _check_table(table: BlockTable, published: Mapping[int, BlockKey]) -> None:
    _require(len(set(table.block_ids)) == len(table.block_ids), "a table repeats a block")
    _require(table.num_committed <= len(table.block_ids), "a block is committed, not held")
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
            found is None or index <= table.num_committed,
            f"block {block_id} is published before it is full",
        )
        _require(
            found is None or index < table.num_shared,
            f"block {block_id} is published and taken for a table's own",
        )
