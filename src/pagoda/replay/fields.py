"""Fields of a trace's row, checked.

Each function raises `InvalidRequestError` with the field, its value and what would do.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import Any

from pagoda.errors import InvalidRequestError

Row = Mapping[str, Any]

MOST_TOKENS = 2**31 - 1
MOST_SECONDS = 1e12
SECOND, MILLISECOND = 1.0, 1e-3
_UNITS = {SECOND: "seconds", MILLISECOND: "milliseconds"}


def whole(row: Row, name: str, least: int = 0, most: int = MOST_TOKENS) -> int:
    """A whole number from `least` to `most`."""
    value = row.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise InvalidRequestError(name, value, f"must be a whole number from {least} to {most}")
    return value


def maybe_whole(row: Row, name: str, least: int = 0, most: int = MOST_TOKENS) -> int | None:
    """The same, or None where the row has no such field."""
    return None if row.get(name) is None else whole(row, name, least, most)


def maybe_number(row: Row, name: str, most: float) -> float | None:
    """A number from 0 to `most`, or None where the row has no such field."""
    value: Any = row.get(name)
    if value is None:
        return None
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not 0 <= value <= most:
        raise InvalidRequestError(name, value, f"must be a number from 0 to {most}")
    return float(value)


def seconds(row: Row, name: str, unit_s: float = SECOND) -> float:
    """A time, told in one of `_UNITS`."""
    value: Any = row.get(name)
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    most = MOST_SECONDS / unit_s
    if not is_number or not 0 <= value <= most:  # no number that is not finite
        limit = f"must be a number of {_UNITS[unit_s]} from 0 to {most:,.0f}"
        raise InvalidRequestError(name, value, limit)
    return float(value * unit_s)


def text(row: Row, name: str) -> str:
    """A text; empty where the row has no such field."""
    value = row.get(name, "")
    if not isinstance(value, str):
        raise InvalidRequestError(name, value, "must be a text")
    return value


def switch(row: Row, name: str) -> bool:
    """True or False."""
    value = row.get(name)
    if not isinstance(value, bool):
        raise InvalidRequestError(name, value, "must be true or false")
    return value


def ids(row: Row, name: str, most: int) -> array[int]:
    """Whole numbers of 64 bits, at most so many."""
    value = row.get(name)
    if not isinstance(value, list) or len(value) > most:
        raise InvalidRequestError(name, value, f"must be a list of at most {most} numbers")
    try:
        return array("Q", value)
    except (TypeError, OverflowError):
        raise InvalidRequestError(name, value, "must be whole numbers of 64 bits") from None
