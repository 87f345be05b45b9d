"""The cache as its users see it: sequences take blocks, fill them, publish them and let go.

    table = cache.open(cache_salt="…")           a sequence, no blocks yet
    match = cache.match(table, tokens)           what of it is already there
    cache.acquire(table, tokens, match)          hold that, and announce the rest
    copies = cache.reserve(table, start, stop)   blocks to write positions start … stop - 1
    cache.commit(table, tokens, num_computed)    publish the blocks that are full by now
    cache.free(table)                            let go of everything, tail first

What a sequence's table looks like in mid-prefill, block_size 4:

    tokens     |  0 …  3 |  4 …  7 |  8 … 11 | 12 … 15 | 16 17
    block         from a hit          computed   reserved, being written
                  shared, indexed     indexed    private
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from pagoda.cache import checks
from pagoda.cache.block import BlockCopy, BlockTable, num_blocks_for
from pagoda.cache.eviction import EvictionPolicy
from pagoda.cache.evictions import eviction_policy
from pagoda.cache.inflight import InFlightBlocks
from pagoda.cache.integrity import check_integrity
from pagoda.cache.match import NO_MATCH, PrefixMatch
from pagoda.cache.pool import BlockPool
from pagoda.cache.prefix import BlockHash, PrefixIndex, root_hash
from pagoda.cache.stats import CacheStats, Counts
from pagoda.errors import BlockTableError


class CacheManager:
    """A paged, prefix-shared KV cache's bookkeeping. It knows ids and tokens, never arrays.

    A table is one list of tokens, which only grows: whoever has other tokens opens another table.
    A call that a table's state does not allow, or whose arguments are not what they have to be,
    raises `BlockTableError` (of an option: `InvalidOptionError`), and nothing has changed.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        enable_prefix_caching: bool = True,
        codec: str = "",
        eviction: EvictionPolicy | str = "lru",
    ) -> None:
        """`codec` names how K and V are stored: blocks stored differently never match.

        `eviction` is a policy, or the name of one in `pagoda.cache.evictions`.
        """
        checks.require_options(num_blocks, block_size, enable_prefix_caching)
        checks.require_texts(codec=codec)
        self.block_size = block_size
        self.enable_prefix_caching = enable_prefix_caching
        self._codec = codec
        self._in_flight = InFlightBlocks()
        self._pool = BlockPool(num_blocks, eviction_policy(eviction), self._forget_evicted)
        self._index = PrefixIndex(num_blocks)
        self._tables: set[BlockTable] = set()
        """The tables that hold blocks, or may."""
        self._counts = Counts()

    # ---- a sequence's life -------------------------------------------------------------------

    def open(self, *, tenant: str = "", cache_salt: str = "") -> BlockTable:
        """A table without blocks, for a sequence that shares with its tenant and salt alone."""
        checks.require_texts(tenant=tenant, cache_salt=cache_salt)
        root = root_hash(tenant=tenant, cache_salt=cache_salt, codec=self._codec)
        return BlockTable(root, owner=self)

    def match(self, table: BlockTable, tokens: Sequence[int]) -> PrefixMatch:
        """The longest prefix of `tokens` that is cached. Changes nothing but `table.keys`.

        Raises `BlockTableError` if `tokens` are not those of the table, see `BlockTable.keys_of`.

        One token is always left to compute, because its output is what comes next: where every
        block is found, the last one is shared up to its last token and copied on write.
        """
        checks.require_own(table, self)
        tokens = checks.token_sequence(tokens)
        if not self.enable_prefix_caching or not tokens:
            return NO_MATCH
        block_ids: list[int] = []
        in_flight = None
        for key in table.keys_of(tokens, self.block_size):
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
        checks.require_hash(block_hash)
        return block_hash in self._in_flight

    def num_blocks_to_admit(self, num_tokens: int, match: PrefixMatch) -> int:
        """Free blocks that a sequence of `num_tokens` takes which begins with `match`.

        These are new ones, a copy of the last block of the match if that is written into, and
        blocks of the match that nobody holds. Raises `BlockTableError` if the match is longer.
        """
        checks.require_match(match, self._pool.num_blocks)
        num_tokens = checks.whole_number("num_tokens", num_tokens, least=match.num_tokens)
        num_new = num_blocks_for(num_tokens, self.block_size) - len(match.block_ids)
        num_copies = 1 if match.num_tokens % self.block_size else 0
        num_unheld = sum(self._pool.is_cached(block_id) for block_id in match.block_ids)
        return num_new + num_copies + num_unheld

    def num_blocks_to_go_on(self, table: BlockTable, num_tokens: int) -> int:
        """Free blocks that a sequence which runs will take: for its `num_tokens` tokens those that
        the table lacks, and one for what comes next."""
        checks.require_own(table, self)
        return self._num_new(table, checks.whole_number("num_tokens", num_tokens, least=0)) + 1

    def acquire(
        self, table: BlockTable, tokens: Sequence[int], match: PrefixMatch, *, counted: bool = True
    ) -> None:
        """Hold the blocks of `match` and announce the full blocks that have yet to be computed.

        `table` holds no blocks before. A sequence that resumes finds its own blocks again, which
        says nothing about sharing: it passes `counted=False`. Raises `BlockTableError` if the table
        holds blocks, or if `match` does not hold any more.
        """
        checks.require_own(table, self)
        checks.require_match(match, self._pool.num_blocks)
        tokens = checks.token_sequence(tokens)
        if table in self._tables:
            raise BlockTableError("table", table, "holds blocks already; free it first")
        num_keys = len(table.keys)
        keys = table.keys_of(tokens, self.block_size) if self.enable_prefix_caching else []
        found = [self._index.find(key) for key in keys[: len(match.block_ids)]]
        if found != list(match.block_ids):
            del table.keys[num_keys:]
            raise BlockTableError("match", match, "is not what is cached now; match again")
        for block_id in match.block_ids:
            self._pool.acquire(block_id)
        table.extend(match.block_ids)
        table.num_committed = table.num_shared = len(match.block_ids)
        table.is_freed = False
        self._tables.add(table)
        if not self.enable_prefix_caching:
            return
        for key in keys[table.num_committed :]:
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
        that nothing has changed. Raises `BlockTableError` if the table was freed and not acquired
        since, or if `start` is behind `stop` or leaves a gap behind the blocks held.
        """
        size = self.block_size
        try:  # nearly always while a sequence decodes; a float may pass, and changes nothing
            held = len(table.block_ids) * size
            if table.num_shared * size <= start < stop <= held and table.owner is self:
                return ()
        except (AttributeError, TypeError, ValueError):
            pass  # no table or no number: what follows names it
        checks.require_own(table, self)
        start, stop = checks.whole_number("start", start), checks.whole_number("stop", stop)
        table.require_reservable(start, stop, size)
        num_new, unwritable = self._num_new(table, stop), self._unwritable(table, start, stop)
        if num_new + len(unwritable) > self._pool.num_free:
            return None
        copies = tuple(self._make_private(table, index) for index in unwritable)
        table.extend([self._allocate() for _ in range(num_new)])
        self._tables.add(table)
        self._counts.copies_on_write += len(copies)
        return copies

    def commit(self, table: BlockTable, tokens: Sequence[int], num_computed: int) -> None:
        """Publish the blocks that are full once `num_computed` of `tokens` are in the cache.

        Raises `BlockTableError` if so many were not reserved, or are not there, or if `tokens` are
        not those of the table; that last is looked at whenever a block is full.
        """
        size = self.block_size
        try:  # nearly always while a sequence decodes; a float may pass, and changes nothing
            is_possible = 0 <= num_computed <= len(table.block_ids) * size and table.owner is self
            is_new = self.enable_prefix_caching and num_computed >= (table.num_committed + 1) * size
            if is_possible and not is_new and num_computed <= len(tokens):
                return
        except (AttributeError, TypeError, ValueError):
            pass  # no table, no tokens or no number: what follows names it
        checks.require_held(table, self, self._tables)
        tokens = checks.token_sequence(tokens)
        num_computed = checks.whole_number("num_computed", num_computed)
        table.require_computable(num_computed, len(tokens), size)
        num_full = num_computed // size
        if num_full <= table.num_committed or not self.enable_prefix_caching:
            return
        keys = table.keys_of(tokens, size)
        for index in range(table.num_committed, num_full):
            self._in_flight.withdraw(keys[index].hash, table)
            if self._index.insert(keys[index], table.block_ids[index]):
                self._counts.commits += 1
        table.num_committed = num_full
        table.num_shared = max(table.num_shared, num_full)

    def fork(self, table: BlockTable, num_tokens: int) -> BlockTable:
        """A second table over the blocks of the first `num_tokens` tokens.

        Both may write on: whoever writes into a block that both hold gets a copy of its own.
        Raises `BlockTableError` if the table does not hold so many tokens.
        """
        checks.require_held(table, self, self._tables)
        num_tokens = checks.whole_number("num_tokens", num_tokens)
        most = len(table.block_ids) * self.block_size
        if not 0 <= num_tokens <= most:
            raise BlockTableError("num_tokens", num_tokens, f"0 to {most}, which the table holds")
        child = BlockTable(table.root, owner=self)
        child.keys = table.keys[: num_tokens // self.block_size]
        child.extend(table.block_ids[: num_blocks_for(num_tokens, self.block_size)])
        child.num_committed = min(table.num_committed, len(child.keys))
        child.num_forked = child.num_shared = len(child.block_ids)
        table.num_forked = max(table.num_forked, child.num_forked)
        table.num_shared = max(table.num_shared, table.num_forked)
        for block_id in child.block_ids:
            self._pool.acquire(block_id)
        self._tables.add(child)
        return child

    def free(self, table: BlockTable) -> None:
        """Drop all of a table's references, tail first; published blocks stay findable.

        The table may be acquired again, for the same tokens. Raises `BlockTableError` if it is
        another cache's or was freed already.
        """
        checks.require_own(table, self)
        if table.is_freed:
            raise BlockTableError("table", table, "was freed already")
        for key in table.keys[table.num_committed :]:
            self._in_flight.withdraw(key.hash, table)
        for block_id in reversed(table.block_ids):
            self._release(block_id)
        table.clear()
        table.is_freed = True
        self._tables.discard(table)

    def forget(self) -> None:
        """Forget every published block; sequences keep what they hold."""
        self._pool.forget(self._index.items())
        self._index.clear()

    def reset(self) -> None:
        """Let go of everything: no table holds blocks, nothing can be found.

        It trusts nothing but the number of blocks, so it mends a cache one of whose calls broke off
        in the middle. Of tables from before, those held count as freed; counts go on.
        """
        for table in self._tables:
            table.clear()
            table.is_freed = True
        self._tables = set()
        self._in_flight = InFlightBlocks()
        self._index = PrefixIndex(self._pool.num_blocks)
        self._pool.reset()

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
        check_integrity(self._pool, self._index, self._in_flight, self._tables)

    # ---- inside ------------------------------------------------------------------------------

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
