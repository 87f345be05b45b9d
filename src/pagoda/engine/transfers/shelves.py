"""From what an engine's options say of tiers to its shelves."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from functools import partial

from pagoda.tiers.compression import NO_COMPRESSION, Compression, Method
from pagoda.tiers.frame import FrameFormat
from pagoda.tiers.frame_formats import FrameFormats
from pagoda.tiers.kinds import is_shared, open_tier
from pagoda.tiers.namespace import Namespace
from pagoda.tiers.seal import Checksum, Seal, TenantSeal
from pagoda.tiers.shares import NO_SHARES, DividedTier, Shares, owner_tag
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
) -> list[Shelf]:
    """In the order of the options; nothing is asked of any tier yet.

    `item_bytes`: of a number in a block, 1 where codes are stored. `secret`: needed where a tier is
    shared. `shares`: of tenants, in tiers of bounded bytes. Raises `InvalidOptionError` for a tier
    whose library is missing.
    """
    shelves, names = list[Shelf](), Counter[str]()
    for tier in tiers:
        if isinstance(tier, TierOption) and tier.kind == "host" and is_on_cpu:
            logger.warning(_SAME_MEMORY)
            continue
        shelf = _shelf(tier, namespace, block_bytes, item_bytes, secret, shares)
        names[shelf.tier.kind] += 1
        if names[shelf.tier.kind] > 1:
            shelf.name = f"{shelf.tier.kind}-{names[shelf.tier.kind]}"
        shelves.append(shelf)
    return shelves


def _shelf(
    tier: TierOption | Tier,
    namespace: Namespace,
    block_bytes: int,
    item_bytes: int,
    secret: bytes | None,
    shares: Shares,
) -> Shelf:
    if isinstance(tier, TierOption):
        compression = NO_COMPRESSION
        if tier.compression == "zstd":
            compression = Compression(Method.ZSTD, item_bytes)
        formats = _formats(is_shared(tier), namespace, block_bytes, secret, compression, shares)
        opened = open_tier(tier, formats.of("").max_bytes)
        if isinstance(opened, DividedTier):
            opened.divide({owner_tag(tenant): share for tenant, share in shares.items()})
        stores_all, timeout_s, told = tier.store is StorePolicy.ALWAYS, tier.timeout_s, str(tier)
    else:
        formats = _formats(tier.is_shared, namespace, block_bytes, secret, NO_COMPRESSION, {})
        opened, stores_all, timeout_s, told = tier, not tier.is_shared, _OWN_TIMEOUT_S, tier.kind
    return Shelf(
        opened,
        formats,
        timeout_s=timeout_s,
        stores_all=stores_all,
        told=told,
        label=(namespace.label_name, namespace.label),
    )


def _formats(
    shared: bool,
    namespace: Namespace,
    block_bytes: int,
    secret: bytes | None,
    compression: Compression,
    shares: Shares,
) -> FrameFormats:
    """Sealed on a shared tier, which is refused without a secret before, and where names tell
    nobody's tenant."""
    form = partial(_format, namespace.digest, block_bytes, compression)
    if not shared:
        return FrameFormats(
            lambda tenant: form(Checksum(), owner_tag(tenant) if tenant in shares else "")
        )
    assert secret is not None
    return FrameFormats(lambda tenant: form(TenantSeal(secret, tenant)))


def _format(
    digest: bytes, block_bytes: int, compression: Compression, seal: Seal, owner: str = ""
) -> FrameFormat:
    return FrameFormat(digest, block_bytes, seal, compression, owner)
