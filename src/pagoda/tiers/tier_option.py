"""What `--kv-tier` says of one tier.

    disk:PATH,size=20GiB
    host:size=8GiB
    redis://host:6379/0,ttl=7d
    s3://bucket/prefix,endpoint=http://host:9000,region=eu-1
    rediss://host:6379/0,ca=FILE

and behind any of them `store=always|reused`, `timeout=SECONDS`, `compression=none|zstd`. Options
are told apart by their names, so an address may have commas of its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from pagoda.byte_size import parse_byte_size
from pagoda.errors import InvalidOptionError
from pagoda.tiers.credentials import without_credentials
from pagoda.tiers.duration import parse_duration, parse_timeout
from pagoda.tiers.tier import Tier

FIELD = "kv_tier"
_LONGEST = 4096
_OPTION = re.compile(r",(?=[a-z_]+=)")


class StorePolicy(StrEnum):
    """Which blocks are stored."""

    ALWAYS = "always"
    """All that are computed."""
    REUSED = "reused"
    """Those that somebody has found a second time."""
    NEVER = "never"
    """None: of commands that inspect what a server may be using. No text says it."""


@dataclass(frozen=True, slots=True)
class TierOption:
    """One tier, as it was asked for. Neither `repr` nor `str` shows a password."""

    kind: str
    address: str = field(repr=False)
    """A path or URL; "" where there is none."""
    store: StorePolicy
    timeout_s: float
    compression: str
    """"none" or "zstd"."""
    capacity_bytes: int | None = None
    ttl_s: float | None = None
    endpoint: str | None = None
    region: str | None = None
    ca_file: str | None = None
    """Of the authority whose certificates are trusted; None: those that the machine trusts."""

    def __str__(self) -> str:
        """As people may see it."""
        return without_credentials(self.address) or self.kind


@dataclass(frozen=True, slots=True)
class TierKind:
    """What can be said of tiers of one kind, and how one is made: a row of `KINDS`."""

    name: str
    form: str
    """As a refusal shows it."""
    opens: Callable[[TierOption, int], Tier]
    """Makes one, without touching what it stands for: of the option and the most bytes of a frame.
    Raises `InvalidOptionError`."""
    schemes: tuple[str, ...] = ()
    """What its URLs begin with; none: its option begins with its name and a colon."""
    is_shared: bool = False
    has_address: bool = True
    """It is somewhere: False for one in a server's own memory."""
    takes: frozenset[str] = frozenset()
    """Its options beside those of all."""
    store: StorePolicy = StorePolicy.ALWAYS
    timeout_s: float = 2.0
    compression: str = "none"

    @property
    def is_bounded(self) -> bool:
        """It keeps so many bytes, which have to be said."""
        return "size" in self.takes


def parse_tier_option(text: str, kinds: Mapping[str, TierKind]) -> TierOption:
    """What an option says, a size or none. Raises `InvalidOptionError`, without any password."""
    if len(text) > _LONGEST:
        raise InvalidOptionError(FIELD, f"{len(text):,} characters", f"at most {_LONGEST:,}")
    shown = without_credentials(text)
    kind, rest = _kind_of(text, shown, kinds)
    first, *others = _OPTION.split(rest)
    if not kind.schemes and re.match(r"[a-z_]+=", first):  # it has no address
        others, first = [first, *others], ""
    if bool(first) != kind.has_address:
        raise InvalidOptionError(FIELD, shown, f"must be {kind.form}")
    option = TierOption(kind.name, first, kind.store, kind.timeout_s, kind.compression)
    given: set[str] = set()
    for each in others:
        name, _, value = each.partition("=")
        if name not in _READERS or not (name in _OF_ALL or name in kind.takes):
            known = ", ".join(sorted({*_OF_ALL, *kind.takes}))
            raise InvalidOptionError(FIELD, shown, f"{name}: {kind.name} takes {known}")
        if name in given:
            raise InvalidOptionError(FIELD, shown, f"{name} is said twice")
        given.add(name)
        option = _READERS[name](option, value)
    return option


def _kind_of(text: str, shown: str, kinds: Mapping[str, TierKind]) -> tuple[TierKind, str]:
    """The kind, and its address with all that follows."""
    for kind in kinds.values():
        if text.startswith(kind.schemes or f"{kind.name}:"):
            return kind, text if kind.schemes else text.removeprefix(f"{kind.name}:")
    forms = ", ".join(kind.form for kind in kinds.values())
    raise InvalidOptionError(FIELD, shown, f"must be one of {forms}")


def _store(option: TierOption, value: str) -> TierOption:
    if value not in (StorePolicy.ALWAYS, StorePolicy.REUSED):
        raise InvalidOptionError(f"{FIELD} store", value, "always or reused")
    return replace(option, store=StorePolicy(value))


def _timeout(option: TierOption, value: str) -> TierOption:
    return replace(option, timeout_s=parse_timeout(f"{FIELD} timeout", value))


def _compression(option: TierOption, value: str) -> TierOption:
    if value not in ("none", "zstd"):
        raise InvalidOptionError(f"{FIELD} compression", value, "none or zstd")
    return replace(option, compression=value)


def _size(option: TierOption, value: str) -> TierOption:
    return replace(option, capacity_bytes=parse_byte_size(f"{FIELD} size", value))


def _ttl(option: TierOption, value: str) -> TierOption:
    return replace(option, ttl_s=parse_duration(f"{FIELD} ttl", value))


def _endpoint(option: TierOption, value: str) -> TierOption:
    return replace(option, endpoint=value)


def _region(option: TierOption, value: str) -> TierOption:
    return replace(option, region=value)


def _ca(option: TierOption, value: str) -> TierOption:
    return replace(option, ca_file=value)


_OF_ALL = frozenset(("store", "timeout", "compression"))
_READERS: Mapping[str, Callable[[TierOption, str], TierOption]] = {
    "store": _store,
    "timeout": _timeout,
    "compression": _compression,
    "size": _size,
    "ttl": _ttl,
    "endpoint": _endpoint,
    "region": _region,
    "ca": _ca,
}
