"""A trace through the cache alone: one request after another, as if each took no time.

    match ── hits ──> acquire ──> reserve ──> commit ──> free

The cache is the one that serves (`pagoda.cache.CacheManager`), with its own policies.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable

from pagoda.cache import NO_MATCH, BlockTable, CacheManager, PrefixMatch, num_blocks_for
from pagoda.cache.hashed_tokens import HashedTokens
from pagoda.replay.found import Found
from pagoda.replay.trace import TracedRequest


class CacheReplay:
    """Serves requests from one cache."""

    def __init__(self, cache: CacheManager, *, whole_blocks: bool = True) -> None:
        """whole_blocks: an unfinished unit that has an id counts as a block, as in figures that are
        published of such traces; else it is found by nobody, as by a server."""
        self._cache = cache
        self._num_blocks = cache.stats().num_blocks
        self._whole_blocks = whole_blocks
        self._num_requests = 0
        self._refused = array("q")

    def serve(self, request: TracedRequest) -> bool:
        """Everything that the request does to the cache; False, and nothing, if it cannot fit.

        Answer tokens that no id stands for tell whether it fits, and take no room.
        """
        cache, size = self._cache, self._cache.block_size
        tokens = request.prompt_in_blocks(size) if self._whole_blocks else request.prompt()
        num_answer = max(0, min(tokens.num_known, request.num_tokens) - len(tokens))
        if num_blocks_for(max(len(tokens), request.num_tokens), size) > self._num_blocks:
            self._refused.append(self._num_requests + len(self._refused))
            return False
        table = cache.open(tenant=request.tenant, cache_salt=request.cache_salt)
        match = cache.match(table, tokens)
        if not self._holds(table, tokens, match):
            cache.free(table)
            # a prompt of all the blocks that there are
            self._holds(table, tokens, NO_MATCH, counted=False)
        cache.commit(table, tokens, len(tokens))
        if num_answer:
            start = len(tokens)
            tokens.grow(num_answer)
            cache.reserve(table, start, len(tokens))
            cache.commit(table, tokens, len(tokens))
        cache.free(table, request.cache_hint)
        self._num_requests += 1
        return True

    def _holds(
        self, table: BlockTable, tokens: HashedTokens, match: PrefixMatch, *, counted: bool = True
    ) -> bool:
        """The blocks of all tokens are held; False: one was lacking, for a copy."""
        self._cache.acquire(table, tokens, match, counted=counted)
        return self._cache.reserve(table, match.num_tokens, len(tokens)) is not None

    def outcome(self) -> Found:
        """Of all requests so far."""
        stats = self._cache.stats()
        return Found(
            num_requests=self._num_requests,
            refused=self._refused,
            num_prompt_tokens=stats.prefix_queries,
            num_hit_tokens=stats.prefix_hits,
            num_evictions=stats.evictions,
        )


def replay_cache(
    requests: Iterable[TracedRequest],
    cache: CacheManager,
    *,
    whole_blocks: bool = True,
    on_request: Callable[[], None] = lambda: None,
) -> Found:
    """All requests through a cache. `on_request` is called after each."""
    replay = CacheReplay(cache, whole_blocks=whole_blocks)
    for request in requests:
        replay.serve(request)
        on_request()
    return replay.outcome()
