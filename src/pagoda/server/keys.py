"""API keys, and the tenants they stand for."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Collection, Iterable, Mapping
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
        self, tenants: Mapping[str, str] | None = None, operators: Collection[str] = ()
    ) -> None:
        """`tenants`: the tenant of each key; several keys may stand for one.

        `operators`: the keys of those who run the server. Where there is one tenant, all are.
        """
        tenants = tenants or {}
        self.num_tenants = len(set(tenants.values()))
        """Those that share the server; none where it is open."""
        self._holders = [
            (_digest(key), Holder(tenant, self.num_tenants == 1 or key in operators))
            for key, tenant in tenants.items()
        ]

    @classmethod
    def of(cls, keys: Iterable[str] = (), file: Path | None = None) -> KeyRing:
        """Keys of operators, who are one tenant, and those of a file: a key and a tenant a line.

        Raises `InvalidOptionError` for a key that is short or not plain text, and for a file that
        cannot be read. Keys themselves are never shown.
        """
        own = {_checked(key, "api_key", "a key"): _OWN_TENANT for key in keys}
        return cls({**own, **({} if file is None else _read(file))}, operators=own)

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


def _read(file: Path) -> dict[str, str]:
    try:
        lines = file.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidOptionError("api_key_file", str(file), f"cannot be read: {error}") from None
    tenants = {}
    for number, line in enumerate(lines, 1):
        fields = line.split("#", 1)[0].split()
        if not fields:
            continue
        if len(fields) != 2:
            limit = f"line {number} must be a key and the name of its tenant"
            raise InvalidOptionError("api_key_file", str(file), limit)
        key = _checked(fields[0], "api_key_file", f"the key of line {number}")
        if key in tenants:
            raise InvalidOptionError("api_key_file", str(file), f"line {number} repeats a key")
        tenants[key] = fields[1]
    if not tenants:
        raise InvalidOptionError("api_key_file", str(file), "holds no key")
    return tenants


def _checked(key: str, field: str, which: str) -> str:
    if len(key) < _LEAST_CHARACTERS or not key.isascii() or not key.isprintable() or " " in key:
        limit = f"{which} must have at least {_LEAST_CHARACTERS} characters of plain ASCII"
        raise InvalidOptionError(field, "…", limit)
    return key
