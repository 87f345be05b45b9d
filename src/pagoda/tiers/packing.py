"""A lossy form that blocks may lie in, in place of their bytes.

    block's bytes ── pack ──> payload ── seal, checksum ──> frame
    near to them <─ unpack ── payload <────────────────────

It is a choice of whoever runs the engine (`form=` of a tier), and a fact of the namespace: what was
loaded, and what was computed behind it, is never found where it was not chosen.
"""

from __future__ import annotations

from typing import Protocol

from pagoda.tiers.names import BlockName
from pagoda.tiers.tier import FrameBytes


class PackingError(Exception):
    """A payload is not what `pack` makes of a block."""


class Packing(Protocol):
    """Any thread may call it."""

    @property
    def name(self) -> str:
        """As options and metrics call the form."""
        ...

    @property
    def max_payload_bytes(self) -> int:
        """Of the longest payload."""
        ...

    def pack(self, name: BlockName, block: memoryview) -> bytes:
        """What is kept of a block's bytes; one that holds no tokens comes back as it went."""
        ...

    def unpack(self, name: BlockName, payload: memoryview) -> FrameBytes:
        """A block's bytes again. Raises `PackingError`."""
        ...
