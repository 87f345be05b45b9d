"""Blocks that a running sequence is computing right now, so that others can wait for them."""

from __future__ import annotations

from pagoda.cache.block import BlockTable
from pagoda.cache.prefix import BlockHash


class InFlightBlocks:
    """Which sequence has announced which block; the first to announce a block owns it."""

    def __init__(self) -> None:
        self._owners: dict[BlockHash, BlockTable] = {}

    def __len__(self) -> int:
        return len(self._owners)

    def __contains__(self, block_hash: BlockHash) -> bool:
        return block_hash in self._owners

    def announce(self, block_hash: BlockHash, owner: BlockTable) -> None:
        """`owner` is going to compute and publish this block; no change if another already is."""
        self._owners.setdefault(block_hash, owner)

    def withdraw(self, block_hash: BlockHash, owner: BlockTable) -> None:
        """`owner` has published the block or gives it up; no change if it is not the owner."""
        if self._owners.get(block_hash) is owner:
            del self._owners[block_hash]

    def owner(self, block_hash: BlockHash) -> BlockTable | None:
        """Who has announced this block; None: nobody."""
        return self._owners.get(block_hash)

    def owners(self) -> set[BlockTable]:
        """Every sequence that others may be waiting for."""
        return set(self._owners.values())
