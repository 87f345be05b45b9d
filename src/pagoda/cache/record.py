"""What a published block holds, for whoever judges its worth."""

from __future__ import annotations

from typing import NamedTuple

NO_BLOCK = -1


class BlockRecord(NamedTuple):
    """A block that can be found from now on, and the block that it follows."""

    hash: bytes
    """Of its tokens and all before them, and of whom they belong to."""
    parent: int
    """Id of the block that holds what comes just before it, or `NO_BLOCK`: it is the first, or that
    one is not there any more."""
    group: int
    """Whose layers' keys and values it holds."""
