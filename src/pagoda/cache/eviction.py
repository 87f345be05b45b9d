"""Which unreferenced block is forgotten first: what a policy is. Policies are in `evictions`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol, runtime_checkable


@runtime_checkable
class EvictionPolicy(Protocol):
    """An order over the unreferenced blocks that still hold something worth finding.

    Every method is O(1). A block id is held at most once.

        add ──> held ── hit ────> referenced: its content is used again, `add` may follow
                     ── evict ──> given up: the next content of the block is another
                     ── forget ─> worth nothing, whether it is held or referenced
    """

    def add(self, block_id: int) -> None:
        """The block's last reference was dropped just now."""
        ...

    def hit(self, block_id: int) -> None:
        """The block is referenced again for what it holds. Raises KeyError if it is not held.

        A block that others reference already cannot be evicted, and nobody tells of its hits.
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
