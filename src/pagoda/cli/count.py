"""Counts of tokens as people write them: 8192, 8K, 32k."""

from __future__ import annotations

import re

from pagoda.errors import InvalidOptionError

# A lower-case letter is decimal and an upper-case one binary, as in vLLM's flags.
_UNITS: dict[str, int] = {
    **{letter: 10 ** (3 * power) for power, letter in enumerate("kmgt", start=1)},
    **{letter: 2 ** (10 * power) for power, letter in enumerate("KMGT", start=1)},
}
_COUNT = re.compile(r"([0-9]+(?:\.[0-9]+)?)([kKmMgGtT])")


def parse_count(field: str, text: str) -> int:
    """A whole number like "8192", "32k" (32,000), "25.6k" (25,600) or "8K" (8,192).

    As vLLM reads `--max-model-len`: a fraction goes with a decimal letter alone. Raises
    `InvalidOptionError` for anything else.
    """
    stripped = text.strip()
    match = _COUNT.fullmatch(stripped)
    if match is None:
        try:
            return int(stripped)
        except ValueError:
            limit = "must be a whole number, as 8192, 32k (32,000) or 8K (8,192)"
            raise InvalidOptionError(field, text, limit) from None
    number, letter = match[1], match[2]
    if number.isdigit():
        return int(number) * _UNITS[letter]
    if letter.isupper():
        limit = f"a fraction goes with a lower-case letter: {number}{letter.lower()}"
        raise InvalidOptionError(field, text, limit)
    return int(float(number) * _UNITS[letter])
