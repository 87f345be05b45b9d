"""Whom a sequence belongs to, and what its keys and values depend on beside its tokens."""

from __future__ import annotations

from typing import NamedTuple

from pagoda.cache.prefix import BlockHash, root_hash


class Origin(NamedTuple):
    """What sequences must have in common to share blocks. Each is text; "" for nothing of it."""

    tenant: str = ""
    cache_salt: str = ""
    codec: str = ""
    """How K and V came to be stored: what they are coded by, and what else they may have gone
    through."""
    retention: str = ""
    """Which tokens stay; "" for all."""

    def root(self) -> BlockHash:
        """The hash that first blocks are chained to."""
        extras = {"tenant": self.tenant, "cache_salt": self.cache_salt, "codec": self.codec}
        if self.retention:
            extras["retention"] = self.retention
        return root_hash(**extras)

    def differing(self, other: Origin) -> tuple[str, ...]:
        """Names of what the two do not have in common."""
        pairs = zip(self._fields, self, other, strict=True)
        return tuple(name for name, own, others in pairs if own != others)


NOBODYS = Origin()
