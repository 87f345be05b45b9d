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


TOKEN_ID = Whole(0, 2**31 - 1)


@dataclass(frozen=True, slots=True)
class Items:
    """A tuple of `least` to `most` items."""

    most: int
    least: int = 0

    def check(self, name: str, value: tuple[Any, ...]) -> None:
        """Raises `InvalidRequestError` that names the field `name`."""
        if not isinstance(value, tuple):
            raise InvalidRequestError(name, value, "must be a list")
        if not self.least <= len(value) <= self.most:
            limit = f"{self.least} to {self.most}" if self.least else f"at most {self.most}"
            raise InvalidRequestError(name, f"{len(value)} entries", limit)


@dataclass(frozen=True, slots=True)
class Texts:
    """A tuple of at most `most` texts, each of 1 to `most_characters` characters."""

    most: int
    most_characters: int

    def check(self, name: str, value: tuple[Any, ...]) -> None:
        """Raises `InvalidRequestError` that names the field `name`."""
        Items(self.most).check(name, value)
        for text in value:
            if not isinstance(text, str) or not 0 < len(text) <= self.most_characters:
                limit = f"each must be a string of 1 to {self.most_characters} characters"
                raise InvalidRequestError(name, text, limit)


@dataclass(frozen=True, slots=True)
class TokenIds:
    """A tuple of `least` to `most` token ids."""

    most: int
    least: int = 0

    def check(self, name: str, value: tuple[Any, ...]) -> None:
        """Raises `InvalidRequestError` that names the field `name`."""
        Items(self.most, self.least).check(name, value)
        for token_id in value:
            TOKEN_ID.check(name, token_id)


Limit = Whole | Real | Switch


def limits_of(owner: type[Any]) -> Mapping[str, Limit]:
    """The limits that the fields of the dataclass `owner` have as `metadata["limit"]`, by name."""
    limits = {each.name: each.metadata.get("limit") for each in fields(owner)}
    return MappingProxyType({name: limit for name, limit in limits.items() if limit is not None})
