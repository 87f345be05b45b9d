"""Limits: the values that a field may have, as data.

A field says its limit once, in its metadata. The check at the door, the server's field, the
command's flag and the tests follow from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any, ClassVar

from pagoda.errors import InvalidRequestError


@dataclass(frozen=True, slots=True)
class Whole:
    """A whole number from `low` to `high`."""

    low: int
    high: int
    or_none: bool = False
    kind: ClassVar[type] = int

    def check(self, name: str, value: object) -> None:
        """Raises `InvalidRequestError` that names the field `name`."""
        if self.or_none and value is None:
            return
        if isinstance(value, bool) or not isinstance(value, int):
            raise InvalidRequestError(name, value, "must be a whole number")
        if not self.low <= value <= self.high:
            raise InvalidRequestError(name, value, f"must be between {self.low} and {self.high}")


@dataclass(frozen=True, slots=True)
class Real:
    """A number from `low` to `high`; `above_low` leaves `low` itself out."""

    low: float
    high: float
    above_low: bool = False
    kind: ClassVar[type] = float

    def check(self, name: str, value: object) -> None:
        """Raises `InvalidRequestError` that names the field `name`."""
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise InvalidRequestError(name, value, "must be a number")
        # NaN is in no range; math.isfinite would fail on whole numbers beyond float64.
        if not self.low <= value <= self.high or (self.above_low and value == self.low):
            start = f"above {self.low:g}" if self.above_low else f"at least {self.low:g}"
            raise InvalidRequestError(name, value, f"must be {start} and at most {self.high:g}")


@dataclass(frozen=True, slots=True)
class Switch:
    """True or false."""

    kind: ClassVar[type] = bool

    def check(self, name: str, value: object) -> None:
        """Raises `InvalidRequestError` that names the field `name`."""
        if not isinstance(value, bool):
            raise InvalidRequestError(name, value, "must be true or false")


Limit = Whole | Real | Switch


def limits_of(owner: type[Any]) -> Mapping[str, Limit]:
    """The limits that the fields of the dataclass `owner` have as `metadata["limit"]`, by name."""
    limits = {each.name: each.metadata.get("limit") for each in fields(owner)}
    return MappingProxyType({name: limit for name, limit in limits.items() if limit is not None})
