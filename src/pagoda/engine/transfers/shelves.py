"""From what an engine's options say of tiers to its shelves."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from pagoda.tiers.compression import Compression, Method
from pagoda.tiers.frame import FrameFormat
from pagoda.tiers.frame_formats import FrameFormats
from pagoda.tiers.kinds import is_shared, open_tier
from pagoda.tiers.namespace import Namespace
from pagoda.tiers.packing import Packing
from pagoda.tiers.seal import Checksum, TenantSeal
from pagoda.tiers.shares import NO_SHARES, Shares, owner_tag
from pagoda.tiers.shelf import Shelf
from pagoda.tiers.tier import Tier
from pagoda.tiers.tier_option import StorePolicy, TierOption

logger = logging.getLogger("pagoda")

_OWN_TIMEOUT_S = 2.0
"""Of a tier of someone's own."""
_SAME_MEMORY = "no blocks are kept in main memory beside the cache: on a CPU it lies there itself"


def shelves_of(
    tiers: Sequence[TierOption | Tier],
    namespace: Namespace,
    block_bytes: int,
    item_bytes: int,
    *,
    secret: bytes | None,
    is_on_cpu: bool,
    shares: Shares = NO_SHARES,
    packing: Packing | None = None,
) -> list[Shelf]:
    """In the order of the options; nothing is asked of any tier yet.

    `item_bytes`: of a number in a block, 1 where codes are stored. `secret`: needed where a tier is
    shared. `shares`: of tenants, in tiers of bounded bytes. `packing`: the lossy form of all of
    them, if they have one. Raises `InvalidOptionError` for a tier whose library is missing.
    """
    shelves, names = list[Shelf](), Counter[str]()
    frame_format = FrameFormat(namespace.digest, block_bytes, Checksum(), packing=packing)
    label = (namespace.label_name, namespace.label)
    for tier in tiers:
        if isinstance(tier, TierOption) and tier.kind == "host" and is_on_cpu:
            logger.warning(_SAME_MEMORY)
            continue
        shelf = _shelf(tier, frame_format, label, item_bytes, secret, shares)
        names[shelf.tier.kind] += 1
        if names[shelf.tier.kind] > 1:
            shelf.name = f"{shelf.tier.kind}-{names[shelf.tier.kind]}"
        shelves.append(shelf)
    return shelves


def _shelf(
    tier: TierOption | Tier,
    frame_format: FrameFormat,
    label: tuple[str, bytes],
    item_bytes: int,
    secret: bytes | None,
    shares: Shares,
) -> Shelf:
    if isinstance(tier, TierOption):
        if tier.compression == "zstd":
            frame_format = replace(frame_format, compression=Compression(Method.ZSTD, item_bytes))
        formats = _formats(frame_format, secret if is_shared(tier) else None, shares)
        of_owners = {owner_tag(tenant): share for tenant, share in shares.items()}
        opened = open_tier(tier, formats.of("").max_bytes, of_owners)
        stores_all, timeout_s, told = tier.store is StorePolicy.ALWAYS, tier.timeout_s, str(tier)
    else:
        formats = _formats(frame_format, secret if tier.is_shared else None, {})
        opened, stores_all, timeout_s, told = tier, not tier.is_shared, _OWN_TIMEOUT_S, tier.kind
    return Shelf(
        opened,
        formats,
        timeout_s=timeout_s,
        stores_all=stores_all,
        told=told,
        label=label,
    )


def _formats(frame_format: FrameFormat, secret: bytes | None, shares: Shares) -> FrameFormats:
    """`secret`: on a shared tier, which is refused without one before, and where names tell
    nobody's tenant."""
    if secret is None:
        return FrameFormats(
            lambda tenant: replace(
                frame_format, owner=owner_tag(tenant) if tenant in shares else ""
            )
        )
    return FrameFormats(lambda tenant: replace(frame_format, seal=TenantSeal(secret, tenant)))
