"""What tenants may have beside one another, as it is written: `floor=10%,cap=4000,weight=2`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction

from pagoda.cache.quota import Quota
from pagoda.errors import InvalidOptionError

FIELD = "tenant_quotas"
LEAST_WEIGHT, MOST_WEIGHT = 0.001, 1000.0
_PATTERN = (
    "like floor=10%,cap=4000,weight=2: blocks or a share of the pool, and a number from "
    f"{LEAST_WEIGHT:g} to {MOST_WEIGHT:g}"
)
_NUMBER = re.compile(r"[0-9]{1,12}(\.[0-9]{1,12})?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Amount:
    """Blocks, or a share of a pool."""

    number: Fraction
    is_share: bool

    def __str__(self) -> str:
        """As it was written, a share in percent."""
        return f"{float(self.number * 100):g}%" if self.is_share else f"{self.number} blocks"

    def in_blocks(self, num_blocks: int) -> int:
        """Of a pool of `num_blocks`, rounded down."""
        return int(self.number * num_blocks) if self.is_share else int(self.number)


_NONE = Amount(Fraction(0), is_share=False)


@dataclass(frozen=True, slots=True)
class TenantQuota:
    """Of one tenant."""

    floor: Amount = _NONE
    """Blocks that are its own whoever else wants them."""
    cap: Amount | None = None
    """Most that it has, held and cached; None: no bound."""
    weight: float = 1.0
    """Its part of steps and seats beside others', in proportion to theirs."""

    def in_blocks(self, tenant: str, num_blocks: int, longest: int) -> Quota:
        """The floor and the cap in a pool of `num_blocks`.

        Raises `InvalidOptionError`, naming the tenant, for a cap below the floor or below
        `longest`, the blocks of one longest request, and for a share that is no whole block.
        """
        floor = self.floor.in_blocks(num_blocks)
        cap = None if self.cap is None else self.cap.in_blocks(num_blocks)
        if (self.floor.number and not floor) or cap == 0:
            limit = f"of {tenant!r} comes to no block of {num_blocks}"
            raise InvalidOptionError("cap" if cap == 0 else "floor", 0, limit)
        if cap is not None and cap < floor:
            limit = f"of {tenant!r} must be at least its floor, {floor}"
            raise InvalidOptionError("cap", cap, limit)
        if cap is not None and cap < longest:
            limit = (
                f"of {tenant!r}, {self.cap} of {num_blocks}, must be at least {longest}, the "
                "blocks of one longest request"
            )
            raise InvalidOptionError("cap", cap, limit)
        return Quota(floor, cap)


def parse_quotas(given: Mapping[str, str] | None) -> dict[str, TenantQuota]:
    """By tenant. Raises `InvalidOptionError` for what is not of the pattern."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise InvalidOptionError(FIELD, given, "must be a mapping from tenants to quotas")
    return {tenant: _parse(tenant, text) for tenant, text in given.items()}


def _parse(tenant: object, text: object) -> TenantQuota:
    if not isinstance(tenant, str) or not isinstance(text, str):
        raise InvalidOptionError(FIELD, text, _PATTERN)
    read: dict[str, Amount | float] = {}
    for part in text.split(","):
        name, equals, value = (each.strip() for each in part.partition("="))
        if not equals or name not in _READERS or name in read:
            raise InvalidOptionError(FIELD, f"{tenant}:{text}", _PATTERN)
        read[name] = _READERS[name](f"{tenant}:{text}", value)
    return TenantQuota(**read)  # type: ignore[arg-type]


def _amount(given: str, value: str) -> Amount:
    is_share, written = value.endswith("%"), value.removesuffix("%")
    if not _NUMBER.fullmatch(written):
        raise InvalidOptionError(FIELD, given, _PATTERN)
    number = Fraction(written)
    if is_share and 0 <= number <= 100:
        return Amount(number / 100, is_share=True)
    if is_share or number < 0 or number.denominator != 1:
        raise InvalidOptionError(FIELD, given, _PATTERN)
    return Amount(number, is_share=False)


def _weight(given: str, value: str) -> float:
    number = float(value) if _NUMBER.fullmatch(value) else 0.0
    if not LEAST_WEIGHT <= number <= MOST_WEIGHT:
        raise InvalidOptionError(FIELD, given, _PATTERN)
    return number


_READERS: dict[str, Callable[[str, str], Amount | float]] = {
    "floor": _amount,
    "cap": _amount,
    "weight": _weight,
}
