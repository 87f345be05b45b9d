"""What a block holds, as a number: how a policy knows it again once the block is gone."""

from __future__ import annotations

from pagoda.cache.record import BlockRecord

_LARGEST_PRIME = 2**64 - 59
"""Of 64 bits."""


def content_key(record: BlockRecord) -> int:
    """A number of 64 bits for what a block holds: from the end of its hash, where neighbours
    differ even if it is but a name."""
    return (int.from_bytes(record.hash[-16:], "little") + record.group) % _LARGEST_PRIME
