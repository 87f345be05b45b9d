"""Which unreferenced block is forgotten first: what a policy is. Policies are in `evictions`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol, runtime_checkable

from pagoda.cache.record import BlockRecord


@runtime_checkable
class EvictionPolicy(Protocol):
    """An order over the unreferenced blocks that still hold something worth finding.

    Every method takes a time that does not grow with the blocks. A block id is held at most once.

        publish ──> referenced ── add ──> held ── hit ────> referenced: its content is used again
                                               ── renew ──> held
                                               ── evict ──> given up: the next content is another
                                               ── forget ─> worth nothing, held or referenced
    """

    def publish(self, block_id: int, record: BlockRecord) -> None:
        """A referenced block can be found from now on, as what the record says.

        The blocks of a sequence are published from the first to the last.
        """
        ...

    def add(self, block_id: int) -> None:
        """The last reference to a block that was published was dropped just now.

        A sequence drops its references from the last block to the first.
        """
        ...

    def hit(self, block_id: int) -> None:
        """The block is referenced again for what it holds. Raises KeyError if it is not held.

        A block that others reference already cannot be evicted, and nobody tells of its hits.
        """
        ...

    def renew(self, block_id: int) -> None:
        """A held block counts as if its last reference were dropped just now; nobody used it.

        Raises KeyError if it is not held.
        """
        ...

    def forget(self, block_id: int) -> None:
        """What the block holds can be found no more; no change if it is not known."""
        ...

    def evict(self) -> int:
        """Give up a block and return its id. Raises KeyError when there is none."""
        ...

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[int]:
        """The ids that are held, the next to be given up first where their order is fixed."""
        ...
