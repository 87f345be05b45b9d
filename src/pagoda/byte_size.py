"""Amounts of memory as people write them."""

from __future__ import annotations

import math
import re

from pagoda.errors import InvalidOptionError

# A lower-case letter alone is decimal and an upper-case one binary, as in vLLM's flags.
_UNITS = {
    "": 1,
    "B": 1,
    **{f"{letter}iB": 2 ** (10 * power) for power, letter in enumerate("KMGT", start=1)},
    **{f"{letter}B": 10 ** (3 * power) for power, letter in enumerate("KMGT", start=1)},
    **{letter: 2 ** (10 * power) for power, letter in enumerate("KMGT", start=1)},
    **{letter: 10 ** (3 * power) for power, letter in enumerate("kmgt", start=1)},
    "kB": 1000,
}
_SIZE = re.compile(r"\s*([0-9.]+(?:[eE][+-]?[0-9]+)?)\s*([A-Za-z]*)\s*")
_LIMIT = "a size like 2GiB, 512MiB, 1e9 or 1073741824 bytes"


def parse_byte_size(field: str, text: str) -> int:
    """Whole bytes of a size like "2GiB", "1.5 GB", "512M" or "1e9".

    Raises `InvalidOptionError` for what is no size, or less than one byte.
    """
    match = _SIZE.fullmatch(text)
    if match is None or match[2] not in _UNITS:
        raise InvalidOptionError(field, text, _LIMIT)
    number, unit = match[1], _UNITS[match[2]]
    try:
        size = int(number) * unit if number.isdigit() else _whole(float(number) * unit)
    except (ValueError, OverflowError):
        raise InvalidOptionError(field, text, _LIMIT) from None
    if size < 1:
        raise InvalidOptionError(field, text, "must be at least one byte")
    return size


def _whole(size: float) -> int:
    return math.floor(size)
