"""What could be found at best, for each block size of a trace that is replayed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pagoda.replay.clairvoyant import Future, References
from pagoda.replay.trace import Trace, TracedRequest

MOST_REFERENCES = 50_000_000
"""Uses of blocks above which it is not worked out: it takes about 40 bytes for each."""


@dataclass(frozen=True, slots=True)
class Optimum:
    """What could be found at best, as shares of the tokens that were asked for."""

    hit_rate: float
    """By knowing the future, in as many blocks."""
    unbounded_hit_rate: float
    """If nothing was ever given up."""


class Optima:
    """The futures of a trace, one for each block size, gathered while it is first replayed."""

    def __init__(self, trace: Trace, whole_blocks: bool, *, is_wanted: bool) -> None:
        """`is_wanted`: whether anything is gathered; nothing can be told without."""
        self._trace = trace
        self._whole_blocks = whole_blocks
        self._is_wanted = is_wanted
        self._futures: dict[int, Future | None] = {}

    def watched(self, block_size: int) -> Iterator[TracedRequest]:
        """The trace's requests."""
        if not self._is_wanted or block_size in self._futures:
            yield from self._trace
            return
        references = References(block_size, whole_blocks=self._whole_blocks)
        num_seen = 0
        for request in self._trace:
            if num_seen <= MOST_REFERENCES:
                num_seen += references.add(request)
            yield request
        self._futures[block_size] = None
        if num_seen <= MOST_REFERENCES:
            self._futures[block_size] = references.future()

    def of(self, block_size: int, num_blocks: int, refused: Sequence[int]) -> Optimum | None:
        """Once the trace was watched to its end; None where there is too much of it, or unwanted.

        `refused`: places of requests that the replay beside it did not serve.
        """
        future = self._futures.get(block_size)
        if future is None:
            return None
        return Optimum(future.hit_rate(num_blocks, refused), future.hit_rate(None, refused))
