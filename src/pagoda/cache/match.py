"""What a lookup finds."""

from __future__ import annotations

from dataclasses import dataclass

from pagoda.cache.prefix import BlockHash


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """What of a sequence is already in the cache."""

    block_ids: tuple[int, ...]
    """As `BlockTable.block_ids`: of all groups, holes where the next row sees none of a block."""
    num_tokens: int
    """Tokens whose K and V need not be computed; fewer than the sequence has, if it has any."""
    in_flight: BlockHash | None = None
    """The next block, if another sequence is computing it right now and waiting would pay."""
    is_read: bool = True
    """The cache was asked."""


NO_MATCH = PrefixMatch((), 0)
"""Nothing was found."""
UNREAD = PrefixMatch((), 0, is_read=False)
"""The match of a sequence that is to be computed whole."""
