"""API keys, and the tenants they stand for."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Collection, Iterable, Mapping
from copy import copy
from dataclasses import dataclass
from pathlib import Path

from pagoda.errors import InvalidOptionError

_LEAST_CHARACTERS = 8
_OWN_TENANT = "default"
"""The tenant of operators' keys."""


@dataclass(frozen=True, slots=True)
class Holder:
    """Whoever presents a key."""

    tenant: str
    """Whose cache the requests see."""
    is_operator: bool
    """May see what all tenants do together, and go before them."""


ANYBODY = Holder("", is_operator=True)
"""Where no key is needed, nobody has more rights than others."""


class KeyRing:
    """The keys that open the server; with none of them it is open to all.

    Keys are kept as digests. A key that is presented is compared with all of them in the same time,
    whichever of them it is like.
    """

    def __init__(
        self,
        tenants: Mapping[str, str] | None = None,
        operators: Collection[str] = (),
        quotas: Mapping[str, str] | None = None,
    ) -> None:
        """`tenants`: the tenant of each key; several keys may stand for one.

        `operators`: the keys of those who run the server. Where there is one tenant, all are.
        `quotas`: of tenants that have one, as they are written.
        """
        tenants = tenants or {}
        self.tenants = frozenset(tenants.values())
        self.quotas = dict(quotas or {})
        self.num_tenants = len(self.tenants)
        """Those that share the server; none where it is open."""
        self._holders = [
            (_digest(key), Holder(tenant, self.num_tenants == 1 or key in operators))
            for key, tenant in tenants.items()
        ]

    @classmethod
    def of(cls, keys: Iterable[str] = (), file: Path | None = None) -> KeyRing:
        """Keys of operators, who are one tenant, and those of a file: a key, a tenant and, where it
        has one, its quota a line.

        Raises `InvalidOptionError` for a key that is short or not plain text, and for a file that
        cannot be read. Keys themselves are never shown.
        """
        own = {_checked(key, "api_key", "a key"): _OWN_TENANT for key in keys}
        tenants, quotas = ({}, {}) if file is None else _read(file)
        return cls({**own, **tenants}, operators=own, quotas=quotas)

    def with_quotas(self, given: Iterable[str]) -> KeyRing:
        """The same keys, and quotas written TENANT:QUOTA, which go before those of the file.

        Raises `InvalidOptionError` for a tenant that no key stands for.
        """
        ring = copy(self)
        ring.quotas = dict(self.quotas)
        named: set[str] = set()
        for each in given:
            tenant, colon, quota = each.rpartition(":")
            if not colon or tenant not in self.tenants:
                known = ", ".join(sorted(self.tenants)) or "there is no key"
                limit = f"must be TENANT:QUOTA, of a tenant that has a key ({known})"
                raise InvalidOptionError("tenant_quota", each, limit)
            if tenant in named:
                raise InvalidOptionError("tenant_quota", each, f"{tenant} has another one already")
            named.add(tenant)
            ring.quotas[tenant] = quota
        return ring

    @property
    def is_open(self) -> bool:
        """No key is needed."""
        return not self._holders

    def holder_of(self, key: str | None) -> Holder | None:
        """Whom a key stands for; None for a key that opens nothing."""
        if self.is_open:
            return ANYBODY
        presented, found = _digest(key or ""), None
        for digest, holder in self._holders:
            if hmac.compare_digest(presented, digest):
                found = holder
        return found


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def _read(file: Path) -> tuple[dict[str, str], dict[str, str]]:
    """Tenants by key, and quotas by tenant."""
    try:
        lines = file.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidOptionError("api_key_file", str(file), f"cannot be read: {error}") from None
    tenants: dict[str, str] = {}
    quotas: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        fields = line.split("#", 1)[0].split()
        if not fields:
            continue
        if len(fields) not in (2, 3):
            limit = f"line {number} must be a key, the name of its tenant, and perhaps its quota"
            raise InvalidOptionError("api_key_file", str(file), limit)
        key = _checked(fields[0], "api_key_file", f"the key of line {number}")
        if key in tenants:
            raise InvalidOptionError("api_key_file", str(file), f"line {number} repeats a key")
        tenants[key] = fields[1]
        if len(fields) == 3 and quotas.setdefault(fields[1], fields[2]) != fields[2]:
            limit = f"line {number} gives {fields[1]} another quota than a line before"
            raise InvalidOptionError("api_key_file", str(file), limit)
    if not tenants:
        raise InvalidOptionError("api_key_file", str(file), "holds no key")
    return tenants, quotas


def _checked(key: str, field: str, which: str) -> str:
    if len(key) < _LEAST_CHARACTERS or not key.isascii() or not key.isprintable() or " " in key:
        limit = f"{which} must have at least {_LEAST_CHARACTERS} characters of plain ASCII"
        raise InvalidOptionError(field, "…", limit)
    return key
