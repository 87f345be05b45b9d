"""The kinds of tiers: a row for each. What one needs is imported when it is made."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from pagoda.errors import InvalidOptionError
from pagoda.tiers.tier import Tier
from pagoda.tiers.tier_option import FIELD, StorePolicy, TierKind, TierOption, parse_tier_option

_SIZE = frozenset({"size"})
_ADDRESS = frozenset({"address"})


def parse_tier(text: str, *, beside: bool = False) -> TierOption:
    """What `--kv-tier` says. Raises `InvalidOptionError`, without any password.

    beside: for a command beside a server, which needs no more than an address.
    """
    return parse_tier_option(text, KINDS, beside=beside)


def open_tier(option: TierOption, max_frame_bytes: int, *, beside: bool = False) -> Tier:
    """A tier, which has not touched yet what it stands for.

    beside: for a command that looks at what a server may be using; it stores nothing. Raises
    `InvalidOptionError` for an address that cannot be, and where a library is missing.
    """
    return KINDS[option.kind].opens(option, max_frame_bytes, beside)


def is_shared(option: TierOption) -> bool:
    """Others may read and write it: it needs a key."""
    return KINDS[option.kind].is_shared


def _host(option: TierOption, max_frame_bytes: int, beside: bool) -> Tier:
    from pagoda.tiers.host import HostTier

    if beside:
        raise InvalidOptionError(FIELD, "host", "is in a server's own memory")
    assert option.capacity_bytes is not None, "its row needs one"
    return HostTier(option.capacity_bytes)


def _disk(option: TierOption, max_frame_bytes: int, beside: bool) -> Tier:
    from pagoda.tiers.disk import DiskTier

    path, capacity = Path(option.address).expanduser(), option.capacity_bytes or 0
    return DiskTier(path, capacity, max_frame_bytes=max_frame_bytes, beside=beside)


def _redis(option: TierOption, max_frame_bytes: int, beside: bool) -> Tier:
    from pagoda.tiers.redis import RedisTier

    return RedisTier(
        option.address, max_frame_bytes, ttl_s=option.ttl_s, ca_file=option.ca_file, option=FIELD
    )


def _s3(option: TierOption, max_frame_bytes: int, beside: bool) -> Tier:
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
    TierKind("host", "host:size=8GiB", _host, takes=_SIZE, needs=_SIZE),
    TierKind("disk", "disk:PATH,size=20GiB", _disk, takes=_SIZE, needs=_ADDRESS | _SIZE),
    TierKind(
        "redis",
        "redis://host:6379/0",
        _redis,
        schemes=("redis://", "rediss://"),
        is_shared=True,
        takes=frozenset({"ttl", "ca"}),
        needs=_ADDRESS,
        store=StorePolicy.REUSED,
    ),
    TierKind(
        "s3",
        "s3://bucket/prefix",
        _s3,
        schemes=("s3://",),
        is_shared=True,
        takes=frozenset({"endpoint", "region", "ca"}),
        needs=_ADDRESS,
        store=StorePolicy.REUSED,
        timeout_s=5.0,
        compression="zstd",
    ),
)
KINDS: Mapping[str, TierKind] = MappingProxyType({row.name: row for row in _ROWS})
"""By the name that metrics have."""
