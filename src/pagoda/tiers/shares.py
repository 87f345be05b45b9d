"""What tenants may have of a tier's bytes beside one another.

    size 20 GiB    bob: floor 10%, cap 50%    2 GiB are his: no other's frame takes their place
                   all others                 share the rest, and what bob has not taken

The same shares that a tenant has of the pool. Whose a frame is stands in its name, for tenants that
have one: so a folder that outlives its process knows it too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from types import MappingProxyType

from pagoda.tiers.names import OWNER_DIGITS


@dataclass(frozen=True, slots=True)
class Share:
    """Of one tenant, as parts of the whole: 0.1 is a tenth."""

    floor: float = 0.0
    """Its own whoever else wants it; others may use what it has not taken."""
    cap: float | None = None
    """Most that it has; None: as much as there is."""


NO_SHARE = Share()
Shares = Mapping[str, Share]
"""By tenants, or by what stands for them in names (`owner_tag`)."""
NO_SHARES: Shares = MappingProxyType({})


def owner_tag(tenant: str) -> str:
    """What stands for a tenant in names of its frames."""
    digest = sha256(b"pagoda owner 1" + tenant.encode("utf-8", "surrogatepass"))
    return digest.hexdigest()[:OWNER_DIGITS]
