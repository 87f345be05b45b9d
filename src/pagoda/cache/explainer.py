"""Why prefixes were not found: a watcher that remembers what was there.

A sequence of nine tokens begins, in blocks of two; one block is found:

    its blocks    | 0 found | 1 gone  | 2 gone  | 3 never | 8
    tokens          0 1       2 3       4 5       6 7       8
    told                      evicted, 4 tokens   never seen, 3 tokens
"""

from __future__ import annotations

import time
from bisect import bisect_left, insort
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from pagoda.cache.block import BlockTable
from pagoda.cache.lookup_counts import LookupCounts
from pagoda.cache.miss import Cause, Divergence, Eviction, Miss
from pagoda.cache.origin import Origin
from pagoda.cache.prefix import BlockHash, BlockKey
from pagoda.cache.watcher import Lookup

_GHOSTS = 4
"""Evicted blocks that are remembered, in pools."""
_TOKEN_BITS = 32


class _Gone(NamedTuple):
    """An eviction, by the clock."""

    at: float
    idle_s: float
    by: Origin


class MissExplainer:
    """Says why each lookup found no more, and counts tokens by cause. A `CacheWatcher`.

    Takes some 0.3 KB for each block that can be found and 0.4 KB for each that is remembered, of
    which there are at most four pools. Blocks of a trace, whose tokens nobody knows, are never told
    to diverge or not to be shared.
    """

    def __init__(
        self, num_blocks: int, block_size: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`clock`: seconds, as the cache has it."""
        self._block_size = block_size
        self._clock = clock
        self._most_gone = _GHOSTS * num_blocks
        self._counts = LookupCounts()
        self._counts_of: dict[str, LookupCounts] = {}
        """By tenant, as it may know them."""
        self._num_stored: Counter[BlockHash] = Counter()
        """Groups that have a block, by its hash."""
        self._gone: OrderedDict[BlockHash, _Gone] = OrderedDict()
        """What was evicted and is not back, the longest ago first."""
        self._followers: dict[BlockHash, list[bytes]] = {}
        """Tokens of the stored blocks that follow a block or a root, sorted."""
        self._heads: dict[bytes, dict[BlockHash, Origin]] = {}
        """Whose sequences begin with a stored block, by its tokens and their roots."""

    @property
    def num_tokens(self) -> Mapping[Cause, int]:
        """Tokens that were not found since the start, by cause."""
        return self._counts.missed()

    def counts(self) -> LookupCounts:
        """What became of the tokens of all lookups since the start; a copy."""
        return self._counts.copy()

    def counts_of(self, tenant: str) -> LookupCounts:
        """Of one tenant's lookups, as it may know them (`Miss.without_others`); a copy."""
        return self._counts_of.get(tenant, LookupCounts()).copy()

    def explain(self, lookup: Lookup) -> Miss:
        """Why it found no more, as of now. Changes nothing."""
        found, length, origin = lookup.num_found, lookup.num_tokens, lookup.table.origin
        if not lookup.is_caching:
            return Miss(Cause.CACHING_OFF, found, {Cause.CACHING_OFF: length}, origin=origin)
        if not lookup.is_read:
            return Miss(Cause.UNREAD, found, {Cause.UNREAD: length}, origin=origin)
        keys = lookup.table.keys[lookup.num_found_blocks :]
        num_known = self._num_known(keys)
        if num_known == len(keys):
            rest = Miss(Cause.REMAINDER, found, {}, origin=origin)
        else:
            number = lookup.num_found_blocks + num_known
            rest = self._unknown(keys[num_known], number * self._block_size, lookup.table)
        if not num_known:
            return replace(rest, position=found, num_tokens={rest.cause: length - found})
        known_end = (lookup.num_found_blocks + num_known) * self._block_size
        num_tokens = {Cause.EVICTED: known_end - found, rest.cause: length - known_end}
        return replace(
            rest,
            cause=Cause.EVICTED,
            position=found,
            num_tokens={cause: number for cause, number in num_tokens.items() if number},
            eviction=self._eviction(keys[:num_known]),
        )

    # ---- what a cache tells ------------------------------------------------------------------

    def looked_up(self, lookup: Lookup) -> None:
        lookup.miss = self.explain(lookup)
        tenant = lookup.table.origin.tenant
        own = self._counts_of.get(tenant)
        if own is None:
            own = self._counts_of[tenant] = LookupCounts()
        self._counts.add(lookup.num_found, lookup.miss)
        own.add(lookup.num_found, lookup.miss.without_others())

    def stored(self, key: BlockKey, group: int, table: BlockTable) -> None:
        self._gone.pop(key.hash, None)
        self._num_stored[key.hash] += 1
        if self._num_stored[key.hash] > 1 or not key.tokens:
            return
        insort(self._followers.setdefault(key.parent, []), key.tokens)
        if key.parent == table.root:
            self._heads.setdefault(key.tokens, {})[table.root] = table.origin

    def reused(self, idle_s: float) -> None:
        """What is there is there, used or not."""

    def freed(self, table: BlockTable) -> None:
        """What is there is there, held or not."""

    def evicted(self, key: BlockKey, group: int, idle_s: float, by: Origin) -> None:
        self._gone[key.hash] = _Gone(self._clock(), idle_s, by)
        self._gone.move_to_end(key.hash)
        if len(self._gone) > self._most_gone:
            self._gone.popitem(last=False)
        self._num_stored[key.hash] -= 1
        if not self._num_stored[key.hash]:
            del self._num_stored[key.hash]
            self._leave(key)

    def cleared(self) -> None:
        """What is forgotten by order counts as never seen."""
        for each in (self._num_stored, self._gone, self._followers, self._heads):
            each.clear()

    # ---- inside ------------------------------------------------------------------------------

    def _leave(self, key: BlockKey) -> None:
        """A block follows its parent no more."""
        if not key.tokens:
            return
        followers = self._followers[key.parent]
        del followers[bisect_left(followers, key.tokens)]
        if not followers:
            del self._followers[key.parent]
        roots = self._heads.get(key.tokens, {})
        roots.pop(key.parent, None)
        if not roots:
            self._heads.pop(key.tokens, None)

    def _num_known(self, keys: Sequence[BlockKey]) -> int:
        """Leading blocks that were there, or still are behind others that went."""
        is_known = (key.hash in self._gone or key.hash in self._num_stored for key in keys)
        return next((number for number, known in enumerate(is_known) if not known), len(keys))

    def _eviction(self, keys: Sequence[BlockKey]) -> Eviction | None:
        """Of the first block of which it is remembered."""
        gone = next((self._gone[key.hash] for key in keys if key.hash in self._gone), None)
        if gone is None:
            return None
        return Eviction(self._clock() - gone.at, gone.idle_s, gone.by)

    def _unknown(self, key: BlockKey, start: int, table: BlockTable) -> Miss:
        """Why nothing is known of a block from position `start` on."""
        divergence = self._divergence(key, start, is_head=key.parent == table.root)
        others: tuple[Origin, ...] = ()
        if key.parent == table.root:
            others = tuple(self._heads.get(key.tokens, {}).values())
        if others:
            cause = Cause.NOT_SHARED
        else:
            cause = Cause.NEVER_SEEN if divergence is None else Cause.DIVERGED
        origin = table.origin
        return Miss(cause, start, {}, divergence=divergence, others=others, origin=origin)

    def _divergence(self, key: BlockKey, start: int, *, is_head: bool) -> Divergence | None:
        """From the block that goes along the furthest; None where nothing does for a token."""
        followers = self._followers.get(key.parent, [])
        place = bisect_left(followers, key.tokens)
        near = followers[max(0, place - 1) : place + 1]
        if not near:
            return None
        nearest = max(near, key=lambda tokens: _num_common(tokens, key.tokens))
        num_common = _num_common(nearest, key.tokens)
        if is_head and not num_common:
            return None
        cached = tuple(memoryview(nearest).cast("I").tolist())
        return Divergence(start + num_common, start, cached)


def _num_common(one: bytes, other: bytes) -> int:
    """Leading tokens that two unlike blocks have in common, by the lowest bit that differs."""
    differing = int.from_bytes(one, "little") ^ int.from_bytes(other, "little")
    return ((differing & -differing).bit_length() - 1) // _TOKEN_BITS
