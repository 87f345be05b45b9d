"""What a text says of one tier: `--kv-tier` of a server, `--tier` of a plan, and the commands'.

    disk:PATH,size=20GiB
    host:size=8GiB
    redis://host:6379/0,ttl=7d
    s3://bucket/prefix,endpoint=http://host:9000,region=eu-1
    rediss://host:6379/0,ca=FILE

and behind any of them `store=always|reused`, `timeout=SECONDS`, `compression=none|zstd`, or in
place of it a lossy form, `form=kvtc-5x`. Options are told apart by their names, so an address may
have commas of its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType

from pagoda.byte_size import parse_byte_size
from pagoda.errors import InvalidOptionError
from pagoda.tiers.credentials import without_credentials
from pagoda.tiers.duration import parse_duration, parse_timeout
from pagoda.tiers.shares import Shares
from pagoda.tiers.tier import Tier

FIELD = "kv_tier"
FORM_FIELD = "kv_tier form"
_LONGEST = 4096
_OPTION = re.compile(r",(?=[a-z_]+=)")


FORMS = MappingProxyType({"kvtc-3x": 4, "kvtc-4x": 6, "kvtc-5x": 8, "kvtc-8x": 12, "kvtc-10x": 16})
"""Lossy forms, and for how many times fewer bytes than bfloat16's each is calibrated. Other text,
with its first block whole, comes to about as many times as the name says."""


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
    form: str | None = None
    """One of `FORMS`, which loses something of each block; None: blocks come back as they went."""
    capacity_bytes: int | None = None
    ttl_s: float | None = None
    endpoint: str | None = None
    region: str | None = None
    ca_file: str | None = None
    """Of the authority whose certificates are trusted; None: those that the machine trusts."""

    @property
    def place(self) -> tuple[str, str, str | None]:
        """What no two tiers of an engine share."""
        return self.kind, self.address, self.endpoint

    def __str__(self) -> str:
        """As people may see it."""
        return without_credentials(self.address) or self.kind


@dataclass(frozen=True, slots=True)
class TierKind:
    """What can be said of tiers of one kind, and how one is made: a row of `KINDS`."""

    name: str
    pattern: str
    """What its options look like, as a refusal shows it."""
    opens: Callable[[TierOption, int, Shares], Tier]
    """Makes one, without touching what it stands for: of the option, the most bytes of a frame and,
    if its bytes are bounded, what tenants have of them. Raises `InvalidOptionError`."""
    schemes: tuple[str, ...] = ()
    """What its URLs begin with; none: its option begins with its name and a colon."""
    is_shared: bool = False
    requires: Callable[[TierOption], None] | None = None
    """Looks at the place before anything is there. Raises `TierError` where it can be no tier's."""
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


@dataclass(frozen=True, slots=True)
class TierText:
    """What a text says, option by option, none of which has been judged."""

    of_field: str
    """Of whoever said it, for refusals."""
    shown: str
    """The text without any password."""
    kind: TierKind
    address: str = field(repr=False)
    """"" where none is said."""
    options: Mapping[str, str] = field(repr=False)

    def option(self) -> TierOption:
        """The tier that is asked for, with whatever of address and size is said. Raises
        `InvalidOptionError` for what its kind does not take."""
        kind = self.kind
        if {"form", "compression"} <= self.options.keys():
            raise self.refusal("form: is packed already, leave compression out")
        option = TierOption(kind.name, self.address, kind.store, kind.timeout_s, kind.compression)
        for name, value in self.options.items():
            if name not in _READERS or not (name in _OF_ALL or name in kind.takes):
                known = ", ".join(sorted({*_OF_ALL, *kind.takes}))
                raise self.refusal(f"{name}: {kind.name} takes {known}")
            option = _READERS[name](option, value, f"{self.of_field} {name}")
        return option

    def refusal(self, limit: str = "") -> InvalidOptionError:
        """Of the whole text: what it must be."""
        return InvalidOptionError(
            self.of_field, self.shown, limit or f"must be {self.kind.pattern}"
        )


def read_tier_text(
    text: str, kinds: Mapping[str, TierKind], of_field: str = FIELD, *, others: Iterable[str] = ()
) -> TierText:
    """Take a text apart. Raises `InvalidOptionError`, without any password, for what is of no kind
    or says something twice. `others`: what else might have been said."""
    if len(text) > _LONGEST:
        raise InvalidOptionError(of_field, f"{len(text):,} characters", f"at most {_LONGEST:,}")
    shown = without_credentials(text)
    for kind in kinds.values():
        if text.startswith(kind.schemes or f"{kind.name}:"):
            rest = text if kind.schemes else text.removeprefix(f"{kind.name}:")
            address, options = read_options(rest, of_field, shown)
            return TierText(of_field, shown, kind, address, options)
    patterns = ", ".join([*others, *(kind.pattern for kind in kinds.values())])
    raise InvalidOptionError(of_field, shown, f"must be one of {patterns}")


def read_options(text: str, of_field: str, shown: str) -> tuple[str, dict[str, str]]:
    """What stands before the first option, if anything, and the options by their names. Raises
    `InvalidOptionError` for one that is said twice."""
    first, *others = _OPTION.split(text)
    if re.match(r"[a-z_]+=", first):  # nothing stands before it
        others, first = [first, *others], ""
    options: dict[str, str] = {}
    for each in others:
        name, _, value = each.partition("=")
        if name in options:
            raise InvalidOptionError(of_field, shown, f"{name} is said twice")
        options[name] = value
    return first, options


def _store(option: TierOption, value: str, name: str) -> TierOption:
    if value not in (StorePolicy.ALWAYS, StorePolicy.REUSED):
        raise InvalidOptionError(name, value, "always or reused")
    return replace(option, store=StorePolicy(value))


def _timeout(option: TierOption, value: str, name: str) -> TierOption:
    return replace(option, timeout_s=parse_timeout(name, value))


def _compression(option: TierOption, value: str, name: str) -> TierOption:
    if value not in ("none", "zstd"):
        raise InvalidOptionError(name, value, "none or zstd")
    return replace(option, compression=value)


def _form(option: TierOption, value: str, name: str) -> TierOption:
    if value not in FORMS:
        raise InvalidOptionError(name, value, f"one of {', '.join(FORMS)}")
    return replace(option, form=value, compression="none")


def _size(option: TierOption, value: str, name: str) -> TierOption:
    return replace(option, capacity_bytes=parse_byte_size(name, value))


def _ttl(option: TierOption, value: str, name: str) -> TierOption:
    return replace(option, ttl_s=parse_duration(name, value))


def _endpoint(option: TierOption, value: str, name: str) -> TierOption:
    return replace(option, endpoint=value)


def _region(option: TierOption, value: str, name: str) -> TierOption:
    return replace(option, region=value)


def _ca(option: TierOption, value: str, name: str) -> TierOption:
    return replace(option, ca_file=value)


_OF_ALL = frozenset(("store", "timeout", "compression"))
_READERS: Mapping[str, Callable[[TierOption, str, str], TierOption]] = {
    "store": _store,
    "timeout": _timeout,
    "compression": _compression,
    "form": _form,
    "size": _size,
    "ttl": _ttl,
    "endpoint": _endpoint,
    "region": _region,
    "ca": _ca,
}
"""Each takes the option so far, what is said, and what a refusal calls it."""
