"""The best that any cache of a size could do on a trace, by knowing the future.

Belady's rule: give up the block whose next use is farthest away. Every use of a block uses its
parents too, so none of them is used later than it; of blocks with one next use, the deepest goes
first. So parents always stay longer than their children, and the rule is optimal for prefixes too.

    request       A B C     A B D     A E     A B C
    next use of C ─────────────────────────────^   farther than that of B, which goes later

It bounds what a policy can find where requests are served one after another: no cache of so many
blocks hits more. It may keep of a request what it likes, nothing too, and what a request needs
while it runs takes no room; a pool's own share of both is what keeps a real cache below.
Source: Belady, A study of replacement algorithms for a virtual-storage computer, 1966.
"""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import pairwise

import numpy as np

from pagoda.replay.trace import TracedRequest

_NEVER = -1
_SLACK = 4096
"""Entries of the heap, of uses that have passed, before it is made anew."""
_ODD = np.uint64(0x9E3779B97F4A7C15)
"""2^64 by the golden ratio: products with it spread over all 64 bits."""


class References:
    """Which blocks a trace's requests use, in order, 8 bytes each."""

    def __init__(self, block_size: int, *, whole_blocks: bool) -> None:
        """whole_blocks: as `TracedRequest.prompt_in_blocks` counts an unfinished unit."""
        self.block_size = block_size
        self._whole_blocks = whole_blocks
        self._names = array("Q")
        self._num_used = array("q")
        self._num_queried = array("q")
        self._num_prompt_tokens = array("q")
        self._roots: dict[tuple[str, str], np.uint64] = {}

    def add(self, request: TracedRequest) -> int:
        """The next request; returns how many blocks it uses.

        Blocks that no id stands for are found by nobody and left out.
        """
        size, unit = self.block_size, request.unit_size
        tokens = request.prompt_in_blocks(size) if self._whole_blocks else request.prompt()
        num_tokens = len(tokens)
        num_all = max(num_tokens, min(tokens.num_known, request.num_tokens))
        last = np.arange(1, min(num_all, tokens.num_known) // size + 1) * size - 1
        ids = np.array(request.unit_ids, dtype=np.uint64)
        places = np.minimum(last // unit, len(ids) - 1)
        names = ids[places] * _ODD ^ (last % unit).astype(np.uint64) * np.uint64(2654435761)
        self._names.frombytes(((names ^ self._root(request)) * _ODD).tobytes())
        self._num_used.append(len(last))
        self._num_queried.append(min(num_tokens // size, len(last)))
        self._num_prompt_tokens.append(num_tokens)
        return len(last)

    def future(self) -> Future:
        """When each block is used next, in time O(n log n)."""
        names = np.frombuffer(self._names, dtype=np.uint64)
        order = np.argsort(names, kind="stable")
        ordered = names[order]
        is_used_again = ordered[1:] == ordered[:-1]
        following = np.full(len(names), _NEVER, dtype=np.int64)
        following[order[:-1][is_used_again]] = order[1:][is_used_again]
        starts = np.concatenate([[0], np.cumsum(self._num_used)]).astype(np.int64)
        return Future(
            self.block_size,
            array("q", following.tobytes()),
            array("q", starts.tobytes()),
            self._num_queried,
            self._num_prompt_tokens,
        )

    def _root(self, request: TracedRequest) -> np.uint64:
        name = (request.tenant, request.cache_salt)
        if name not in self._roots:
            text = repr(name).encode("utf-8", "surrogatepass")
            self._roots[name] = np.uint64(zlib.crc32(text) << 32 | zlib.crc32(text[::-1]))
        return self._roots[name]


@dataclass(frozen=True, slots=True)
class Future:
    """The uses of blocks of a whole trace, by their place in the order of use."""

    block_size: int
    following: array[int]
    """The place where the block is used next; -1: nowhere."""
    starts: array[int]
    """Where each request's uses begin, and where the last ends."""
    num_queried: array[int]
    """Blocks of each request that it looks up; the others, of its answer, it leaves behind."""
    num_prompt_tokens: array[int]

    def hit_rate(self, num_blocks: int | None, refused: Sequence[int] = ()) -> float:
        """Tokens found of those asked for at best in a pool of `num_blocks`; None: without end.

        Requests that were `refused`, by their places in the trace, asked for nothing and use
        nothing. In time O(n log n).
        """
        most = len(self.following) if num_blocks is None else num_blocks
        num_hit = num_asked = 0
        for request, found in self._found(most, frozenset(refused)):
            tokens = self.num_prompt_tokens[request]
            num_asked += tokens
            num_hit += max(0, min(found * self.block_size, tokens - 1))
        return num_hit / num_asked if num_asked else 0.0

    def _found(self, num_blocks: int, refused: Set[int]) -> Iterator[tuple[int, int]]:
        """Each request that is served, and how many of its first blocks are there."""
        is_kept, is_void = bytearray(len(self.following)), bytearray(len(self.following))
        for request in refused:
            start, stop = self.starts[request : request + 2]
            is_void[start:stop] = b"\1" * (stop - start)
        heap: list[int] = []  # of the next uses of blocks that are kept, the last first
        num_kept = 0
        for request, (start, stop) in enumerate(pairwise(self.starts)):
            if request in refused:
                continue
            found = is_kept.find(0, start, start + self.num_queried[request])
            yield request, self.num_queried[request] if found < 0 else found - start
            for use in range(start, stop):
                num_kept -= is_kept[use]
                again = self.following[use]
                while again != _NEVER and is_void[again]:
                    again = self.following[again]
                if again != _NEVER:
                    is_kept[again] = 1
                    num_kept += 1
                    heappush(heap, -again)
            while num_kept > num_blocks:
                is_kept[-heappop(heap)] = 0
                num_kept -= 1
            if len(heap) > 2 * num_kept + _SLACK:
                heap = [each for each in heap if -each >= stop]
                heapify(heap)
