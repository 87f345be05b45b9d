"""What tenants may have beside one another, as it is written: `floor=10%,cap=4000,weight=2`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction

from pagoda.cache.quota import Quota
from pagoda.errors import InvalidOptionError

FIELD = "tenant_quotas"
_FORM = "like floor=10%,cap=4000,weight=2: blocks or a share of the pool, and a number above 0"


@dataclass(frozen=True, slots=True)
class Amount:
    """Blocks, or a share of a pool."""

    number: Fraction
    is_share: bool

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

    def in_blocks(self, num_blocks: int) -> Quota:
        """The floor and the cap in a pool of `num_blocks`.

        Raises `InvalidOptionError` for a cap below the floor, or of no block.
        """
        cap = None if self.cap is None else self.cap.in_blocks(num_blocks)
        return Quota(self.floor.in_blocks(num_blocks), cap)


def parse_quotas(given: Mapping[str, str] | None) -> dict[str, TenantQuota]:
    """By tenant. Raises `InvalidOptionError` for what is not of the form."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise InvalidOptionError(FIELD, given, "must be a mapping from tenants to quotas")
    return {tenant: _parse(tenant, text) for tenant, text in given.items()}


def _parse(tenant: object, text: object) -> TenantQuota:
    if not isinstance(tenant, str) or not isinstance(text, str):
        raise InvalidOptionError(FIELD, text, _FORM)
    read: dict[str, Amount | float] = {}
    for part in text.split(","):
        name, equals, value = (each.strip() for each in part.partition("="))
        if not equals or name not in _READERS or name in read:
            raise InvalidOptionError(FIELD, f"{tenant}:{text}", _FORM)
        read[name] = _READERS[name](f"{tenant}:{text}", value)
    return TenantQuota(**read)  # type: ignore[arg-type]


def _amount(given: str, value: str) -> Amount:
    is_share = value.endswith("%")
    try:
        number = Fraction(value.removesuffix("%"))
    except (ValueError, ZeroDivisionError):
        raise InvalidOptionError(FIELD, given, _FORM) from None
    if is_share and 0 <= number <= 100:
        return Amount(number / 100, is_share=True)
    if is_share or number < 0 or number.denominator != 1:
        raise InvalidOptionError(FIELD, given, _FORM)
    return Amount(number, is_share=False)


def _weight(given: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = 0.0
    if not 0 < number < math.inf:
        raise InvalidOptionError(FIELD, given, _FORM)
    return number


_READERS: dict[str, Callable[[str, str], Amount | float]] = {
    "floor": _amount,
    "cap": _amount,
    "weight": _weight,
}
