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

Layers whose windows differ form groups, each with blocks of its own out of the one pool; full
attention is a group like any other. `commit` lets go of blocks that are behind a group's window,
and a match is as long as every group can go on from.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from pagoda.cache import checks
from pagoda.cache.accounts import Holding
from pagoda.cache.admission import BlocksNeeded
from pagoda.cache.allowance import NOTHING_SPOKEN_FOR, Allowance
from pagoda.cache.block import HOLE, BlockCopy, BlockTable
from pagoda.cache.copy_on_write import make_private, shared_places
from pagoda.cache.eviction import EvictionPolicy
from pagoda.cache.evictions import policies_of
from pagoda.cache.inflight import InFlightBlocks
from pagoda.cache.integrity import check_integrity
from pagoda.cache.let_go import drop, let_go, make_room
from pagoda.cache.match import NO_MATCH, PrefixMatch
from pagoda.cache.origin import Origin
from pagoda.cache.prefix import BlockHash, BlockKey
from pagoda.cache.prefix_pool import PrefixPool
from pagoda.cache.publishing import announce, publish
from pagoda.cache.quota import Quota, require_quotas
from pagoda.cache.search import longest_prefix, still_holds
from pagoda.cache.snapshot import PoolSnapshot
from pagoda.cache.stats import CacheStats
from pagoda.cache.watcher import CacheWatcher, Lookup
from pagoda.cache.window import EVERY_TOKEN, FULL_ATTENTION, AttentionWindow
from pagoda.cache_hint import CacheHint
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
        windows: Sequence[AttentionWindow] = (FULL_ATTENTION,),
        under_way_tokens: int = EVERY_TOKEN,
        quotas: Mapping[str, Quota] | None = None,
        watchers: Sequence[CacheWatcher] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`codec` names how K and V came to be stored: blocks stored differently never match.

        `eviction` is a policy, or the name of one in `pagoda.cache.evictions`. `windows`: what rows
        see in the layers of each group. `under_way_tokens`: that many tokens of a sequence at most
        are reserved and not committed, which tells how many blocks of a window are needed at once.
        `quotas`: what tenants may have of the pool; then `eviction` is a name. `watchers` are told
        what becomes of blocks, and for how many seconds of `clock` they were idle.
        """
        checks.require_options(num_blocks, block_size, enable_prefix_caching)
        checks.require_texts(codec=codec)
        self.block_size = block_size
        self.enable_prefix_caching = enable_prefix_caching
        self._codec = codec
        self._in_flight = InFlightBlocks()
        self._windows = tuple(windows)
        self._needed = BlocksNeeded(block_size, under_way_tokens)
        require_quotas(quotas or {}, num_blocks)
        new_policy = policies_of(eviction, num_blocks, quotas or {})
        args = (num_blocks, new_policy, quotas or {}, len(self._windows), watchers, clock)
        self._blocks = PrefixPool(*args)
        self._tables: set[BlockTable] = set()
        """The tables that hold blocks, or may."""

    # ---- a sequence's life -------------------------------------------------------------------

    def open(
        self,
        *,
        tenant: str = "",
        cache_salt: str = "",
        retention: AttentionWindow = FULL_ATTENTION,
    ) -> BlockTable:
        """A table without blocks, for a sequence that shares with its tenant and salt alone.

        `retention` narrows what its rows see. K and V behind other rows are others, so it shares
        with sequences of the same retention alone.
        """
        checks.require_texts(tenant=tenant, cache_salt=cache_salt)
        kept = "" if retention.is_full else str(retention)
        origin = Origin(tenant, cache_salt, self._codec, kept)
        windows = tuple(window.narrowed(retention) for window in self._windows)
        table = BlockTable(origin, self, windows)
        table.move_to(0, self.block_size)
        return table

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
        keys = table.keys_of(tokens, self.block_size)
        num_blocks, block_ids = longest_prefix(
            self._blocks.index, table.windows, keys, len(tokens), self.block_size
        )
        in_flight = None
        if num_blocks < len(keys) and keys[num_blocks].hash in self._in_flight:
            in_flight = keys[num_blocks].hash
        num_tokens = min(num_blocks * self.block_size, len(tokens) - 1)
        return PrefixMatch(block_ids, num_tokens, in_flight)

    def is_in_flight(self, block_hash: BlockHash) -> bool:
        """Another sequence is still going to publish this block."""
        checks.require_hash(block_hash)
        return block_hash in self._in_flight

    def announced_by(self, block_hash: BlockHash) -> BlockTable | None:
        """The table of the sequence that is going to publish this block; None: nobody is."""
        checks.require_hash(block_hash)
        return self._in_flight.owner(block_hash)

    def published(self, key: BlockKey, group: int = 0) -> int | None:
        """The block of a group that is found by `key`; nobody writes to it while it can be."""
        return self._blocks.index.find(key, group)

    def num_blocks_to_admit(
        self, num_tokens: int, match: PrefixMatch,
        windows: Sequence[AttentionWindow] | None = None,
    ) -> int:  # fmt: skip
        """Free blocks that a sequence of `num_tokens` takes which begins with `match`.

        New ones, a copy of the match's last block if that is written into, and blocks of the match
        that nobody holds. `windows`: of its table, if they are not the cache's. Raises
        `BlockTableError` if the match is longer.
        """
        checks.require_match(match, self._blocks.pool.num_blocks)
        num_tokens = checks.whole_number("num_tokens", num_tokens, least=match.num_tokens)
        num_new = self._needed.to_admit(windows or self._windows, num_tokens, match)
        held = (block_id for block_id in match.block_ids if block_id != HOLE)
        return num_new + sum(map(self._blocks.pool.is_cached, held))

    def num_blocks_to_go_on(self, table: BlockTable, num_tokens: int) -> int:
        """Free blocks that a sequence which runs will take: for its `num_tokens` tokens those that
        the table lacks, and one for what comes next."""
        checks.require_own(table, self)
        num_tokens = checks.whole_number("num_tokens", num_tokens, least=0)
        return self._needed.to_go_on(table, num_tokens)

    def acquire(
        self, table: BlockTable, tokens: Sequence[int], match: PrefixMatch,
        *, counted: bool = True, announced: bool = True,
    ) -> Lookup | None:  # fmt: skip
        """Hold the blocks of `match` and announce the full blocks that have yet to be computed.

        `table` holds no blocks before. A sequence that resumes finds its own blocks again, which
        says nothing about sharing: it passes `counted=False`. Of any other returns what watchers
        say of its lookup. `announced=False`: nobody is to wait for the rest. Raises
        `BlockTableError` if the table holds blocks, or if `match` does not hold any more.
        """
        checks.require_own(table, self)
        checks.require_match(match, self._blocks.pool.num_blocks)
        tokens = checks.token_sequence(tokens)
        if table in self._tables:
            raise BlockTableError("table", table, "holds blocks already; free it first")
        num_keys = len(table.keys)
        keys = table.keys_of(tokens, self.block_size) if self.enable_prefix_caching else []
        if not still_holds(self._blocks.index, table.windows, keys, match, self.block_size):
            del table.keys[num_keys:]
            raise BlockTableError("match", match, "is not what is cached now; match again")
        for block_id in match.block_ids:
            if block_id != HOLE:
                self._blocks.acquire(block_id)
        table.extend(match.block_ids)
        table.num_committed = table.num_shared = len(table)
        table.num_found = min(table.num_found, len(table)) if not counted else len(table)
        table.num_settled, table.turn = match.num_tokens, len(tokens)
        table.move_to(match.num_tokens, self.block_size)
        table.is_freed = False
        self._tables.add(table)
        lookup = None
        if counted:
            lookup = Lookup.of(table, len(tokens), match, is_caching=self.enable_prefix_caching)
            self._blocks.look_up(lookup)
        if announced:
            announce(self._blocks, self._in_flight, table, keys)
        return lookup

    @property
    def num_free_blocks(self) -> int:
        """Blocks that nobody holds. `allowance` says how many of them a table may take."""
        return self._blocks.pool.num_free

    def allowance(
        self, table: BlockTable, spoken_for: Mapping[str, int] = NOTHING_SPOKEN_FOR
    ) -> Allowance:
        """Blocks that a table may still take, beside those `spoken_for` by tenants' sequences."""
        return self._blocks.pool.allowance(table.origin.tenant, spoken_for)

    def quota_of(self, tenant: str) -> Quota:
        """What a tenant may have of the pool."""
        return self._blocks.pool.partitions.of(tenant).quota

    def helps(self, table: BlockTable, tenant: str) -> bool:
        """Blocks that a sequence of `tenant` drops are some that `table` may take."""
        return self._blocks.pool.helps(table.origin.tenant, tenant)

    def reserve(self, table: BlockTable, start: int, stop: int) -> tuple[BlockCopy, ...] | None:
        """Make the slots of positions `start` to `stop - 1` writable.

        Appends blocks, and replaces a block that is shared or published by a private copy. The
        copies returned must be carried out before anything is written; all of a step's at once,
        reading every source before writing a target. Where blocks are short, the table lets go of
        those that it keeps for others who may begin where its last full block ends; no row from its
        last settled token on sees them. None says that too few are free even so, and that nothing
        has changed. Raises `BlockTableError` if the table was freed and not acquired since, or if
        `start` is behind `stop`, leaves a gap behind the blocks held, or was let go.
        """
        size = self.block_size
        try:  # nearly always while a sequence decodes; a float may pass, and changes nothing
            held = len(table.block_ids) // table.num_groups * size
            least = max(table.num_shared * size, table.position)
            if least <= start < stop <= held and table.owner is self:
                return ()
        except (AttributeError, TypeError, ValueError):
            pass  # no table or no number: what follows names it
        checks.require_own(table, self)
        start, stop = checks.whole_number("start", start), checks.whole_number("stop", stop)
        table.require_reservable(start, stop, size)
        num_new = self._needed.to_cover(table, stop)
        shared = shared_places(self._blocks, table, start, stop, size)
        num_short = num_new + len(shared) - self.allowance(table).num_blocks
        if num_short > 0 and not make_room(self._blocks, table, num_short, size):
            return None
        copies = tuple(make_private(self._blocks, table, place) for place in shared)
        table.extend([self._blocks.allocate(table.origin) for _ in range(num_new)])
        self._tables.add(table)
        self._blocks.counts.copies_on_write += len(copies)
        return copies

    def commit(self, table: BlockTable, tokens: Sequence[int], num_computed: int) -> None:
        """Publish the blocks that are full once `num_computed` of `tokens` are in the cache.

        Lets go of what is behind a window, for the last computed token, which may be computed
        again, and for whoever begins where the last full block ends. No step that is under way
        reads it: a commit comes when a step is settled.

        Raises `BlockTableError` if so many were not reserved, or are not there, or if `tokens` are
        not those of the table; that last is looked at whenever a block is full.
        """
        size = self.block_size
        try:  # nearly always while a sequence decodes; a float may pass, and changes nothing
            most = min(len(table.block_ids) // table.num_groups * size, table.lets_go_at - 1)
            is_possible = 0 <= num_computed <= most and table.owner is self
            is_new = self.enable_prefix_caching and num_computed >= (table.num_committed + 1) * size
            if is_possible and not is_new and num_computed <= len(tokens):
                table.num_settled = int(num_computed)
                return
        except (AttributeError, TypeError, ValueError):
            pass  # no table, no tokens or no number: what follows names it
        checks.require_held(table, self, self._tables)
        tokens = checks.token_sequence(tokens)
        num_computed = checks.whole_number("num_computed", num_computed)
        table.require_computable(num_computed, len(tokens), size)
        num_full = num_computed // size
        if num_full > table.num_committed and self.enable_prefix_caching:
            keys = table.keys_of(tokens, size)
            publish(self._blocks, self._in_flight, table, keys, num_full)
        table.num_settled = num_computed
        let_go(self._blocks, table, min(num_computed - 1, num_full * size), size)

    def fork(self, table: BlockTable, num_tokens: int) -> BlockTable:
        """A second table over the blocks of the first `num_tokens` tokens.

        Both may write on: whoever writes into a block that both hold gets a copy of its own.
        Raises `BlockTableError` if the table does not hold so many tokens, or no longer what the
        last of them sees.
        """
        checks.require_held(table, self, self._tables)
        num_tokens = checks.whole_number("num_tokens", num_tokens)
        table.require_forkable(num_tokens, self.block_size)
        child = table.fork(num_tokens, self.block_size)
        for block_id in child.block_ids:
            if block_id != HOLE:
                self._blocks.acquire(block_id)
        self._tables.add(child)
        return child

    def free(self, table: BlockTable, hint: CacheHint | None = None) -> None:
        """Drop all of a table's references, tail first; published blocks stay findable.

        `hint`: how long, beside others. The table may be acquired again, for the same tokens.
        Raises `BlockTableError` if it is another cache's or was freed already, and
        `InvalidOptionError` for another hint.
        """
        checks.require_own(table, self)
        checks.require_cache_hint(hint)
        if table.is_freed:
            raise BlockTableError("table", table, "was freed already")
        for key in table.keys[table.num_committed :]:
            self._in_flight.withdraw(key.hash, table)
        self._blocks.tell_freed(table)
        drop(self._blocks, table, hint, self.block_size)
        self._tables.discard(table)

    def forget(self) -> None:
        """Forget every published block; sequences keep what they hold."""
        self._blocks.forget()

    def reset(self) -> None:
        """Let go of everything: no table holds blocks, nothing can be found.

        It trusts nothing but the number of blocks, so it mends a cache one of whose calls broke off
        in the middle. Of tables from before, those held count as freed; counts go on.
        """
        for table in self._tables:
            table.clear()
            table.move_to(0, self.block_size)
            table.is_freed = True
        self._tables = set()
        self._in_flight = InFlightBlocks()
        self._blocks.reset()

    # ---- looking at it -----------------------------------------------------------------------

    def holdings(self) -> Mapping[str, Holding]:
        """Blocks and block-seconds of each tenant, as of now."""
        return self._blocks.accounts.holdings()

    def stats(self) -> CacheStats:
        """Counts and state as of now."""
        is_caching = self.enable_prefix_caching
        return CacheStats.of(self._blocks, self.block_size, enable_prefix_caching=is_caching)

    def snapshot(self) -> PoolSnapshot:
        """Every block as it is now: a few copies of arrays, whatever is in them."""
        return PoolSnapshot.of(self._blocks)

    def check_integrity(self) -> None:
        """Verify every invariant from scratch, in time linear in the pool.

        Raises `IntegrityError` with the first one that does not hold.
        """
        check_integrity(self._blocks, self._in_flight, self._tables, self.block_size)
