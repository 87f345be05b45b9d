"""The kinds of tiers: a row for each. What one needs is imported when it is made."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from pagoda.errors import InvalidOptionError
from pagoda.tiers.shares import NO_SHARES, Shares
from pagoda.tiers.tier import Tier, TierError, TierFault
from pagoda.tiers.tier_option import FIELD, StorePolicy, TierKind, TierOption, read_tier_text

logger = logging.getLogger("pagoda")

_SIZE = frozenset({"size"})
_FORM = frozenset({"form"})


def parse_tier(text: str) -> TierOption:
    """What `--kv-tier` says. Raises `InvalidOptionError`, without any password."""
    told = read_tier_text(text, KINDS)
    option, kind = told.option(), told.kind
    lacks_size = kind.is_bounded and option.capacity_bytes is None
    if bool(told.address) != kind.has_address or lacks_size:
        raise told.refusal()
    return option


def parse_inspected_tier(text: str) -> TierOption:
    """What a command says of a tier that a server may be using: its address will do, and nothing
    is stored there. Raises `InvalidOptionError`, without any password."""
    told = read_tier_text(text, KINDS)
    if not told.kind.has_address:
        raise told.refusal("is in a server's own memory")
    if not told.address:
        raise told.refusal()
    return replace(told.option(), store=StorePolicy.NEVER)


def open_tier(option: TierOption, max_frame_bytes: int, shares: Shares = NO_SHARES) -> Tier:
    """A tier, which has not touched yet what it stands for.

    `shares`: of tenants, by what stands for them in names; only bounded bytes are shared out.
    Raises `InvalidOptionError` for an address that cannot be, and where a library is missing.
    """
    return KINDS[option.kind].opens(option, max_frame_bytes, shares)


def require_tier(option: TierOption) -> None:
    """Refuse a tier that can never be, before anything is made of it: an address that is none, a
    library that is missing, a place that is another program's. What may be well later is told by
    the log. Takes the tier's timeout at most. Raises `InvalidOptionError`."""
    open_tier(option, 1).close()
    requires = KINDS[option.kind].requires
    try:
        if requires is not None:
            requires(option)
    except TierError as error:
        if error.reason is TierFault.FOREIGN:
            raise InvalidOptionError(FIELD, str(option), error.detail) from None
        logger.warning("the tier %s is not used until it is well: %s", option, error.detail)


def is_shared(option: TierOption) -> bool:
    """Others may read and write it: it needs a key."""
    return KINDS[option.kind].is_shared


def _host(option: TierOption, max_frame_bytes: int, shares: Shares) -> Tier:
    from pagoda.tiers.host import HostTier

    assert option.capacity_bytes is not None, "its row needs one"
    return HostTier(option.capacity_bytes, shares)


def _disk(option: TierOption, max_frame_bytes: int, shares: Shares) -> Tier:
    from pagoda.tiers.disk import DiskTier

    capacity = None if option.store is StorePolicy.NEVER else option.capacity_bytes
    return DiskTier(_path(option), capacity, shares=shares, max_frame_bytes=max_frame_bytes)


def _free_folder(option: TierOption) -> None:
    from pagoda.tiers.disk import require_free_folder

    require_free_folder(_path(option), option.timeout_s)


def _path(option: TierOption) -> Path:
    try:
        return Path(option.address).expanduser()
    except RuntimeError:
        limit = "begins with the name of nobody who has a home here"
        raise InvalidOptionError(FIELD, str(option), limit) from None


def _redis(option: TierOption, max_frame_bytes: int, shares: Shares) -> Tier:
    from pagoda.tiers.redis import RedisTier

    return RedisTier(
        option.address, max_frame_bytes, ttl_s=option.ttl_s, ca_file=option.ca_file, option=FIELD
    )


def _s3(option: TierOption, max_frame_bytes: int, shares: Shares) -> Tier:
    from pagoda.tiers.s3 import S3Tier
    from pagoda.tiers.s3_address import S3Address

    address = S3Address.parse(
        option.address,
        endpoint=option.endpoint,
        region=option.region,
        ca_file=option.ca_file,
        option=FIELD,
    )
    return S3Tier(address.open(FIELD), max_frame_bytes, told=str(address))


_ROWS = (
    TierKind("host", "host:size=8GiB", _host, has_address=False, takes=_SIZE),
    # a lossy form is for blocks of CPUs, whose memory such a tier would share
    TierKind("disk", "disk:PATH,size=20GiB", _disk, requires=_free_folder, takes=_SIZE | _FORM),
    TierKind(
        "redis",
        "redis://host:6379/0",
        _redis,
        schemes=("redis://", "rediss://"),
        is_shared=True,
        takes=_FORM | {"ttl", "ca"},
        store=StorePolicy.REUSED,
    ),
    TierKind(
        "s3",
        "s3://bucket/prefix",
        _s3,
        schemes=("s3://",),
        is_shared=True,
        takes=_FORM | {"endpoint", "region", "ca"},
        store=StorePolicy.REUSED,
        timeout_s=5.0,
        compression="zstd",
    ),
)
KINDS: Mapping[str, TierKind] = MappingProxyType({row.name: row for row in _ROWS})
"""By the name that metrics have."""
