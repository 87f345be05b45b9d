"""JSON in files of strangers, measured before it is parsed.

Python's objects take many times the bytes of the text that they are read from. What bounds them is
the number of values, and commas and opening brackets in the text bound that.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pagoda.errors import ModelError, shorten

MOST_DIGITS = 100


@dataclass(frozen=True, slots=True)
class JSONLimits:
    """How much of it is read."""

    most_bytes: int = 2**22
    most_wide_bytes: int = 2**22
    """Where it is not plain ASCII or has escapes: each character may then take four bytes."""
    most_values: int = 2**15
    """Commas and opening brackets, those inside strings too."""
    names_twice: bool = True
    """Whether a name may be there twice in one object; the last one then counts."""


CONFIG_LIMITS = JSONLimits()
"""Many times the largest config."""


def read_json(path: Path, limits: JSONLimits = CONFIG_LIMITS) -> dict[str, Any]:
    """The object in a JSON file; a `ModelError` where it cannot be read, is none or too large."""
    try:
        with path.open("rb") as file:
            text = file.read(limits.most_bytes + 1)
    except OSError as error:
        raise ModelError(path.name, str(path), f"cannot be read: {error.strerror}") from error
    return parse_json(text, path.name, str(path), limits)


def parse_json(text: bytes, field: str, value: str, limits: JSONLimits) -> dict[str, Any]:
    """The object that `text` spells; errors name the `field` and show the `value`."""
    if len(text) > limits.most_bytes:
        raise ModelError(field, value, f"must be JSON of at most {limits.most_bytes:,} bytes")
    if len(text) > limits.most_wide_bytes and (not text.isascii() or b"\\u" in text):
        limit = f"must be JSON of at most {limits.most_wide_bytes:,} bytes, or plain ASCII"
        raise ModelError(field, value, limit)
    if sum(map(text.count, (b",", b"{", b"["))) > limits.most_values:
        raise ModelError(field, value, f"must be JSON of at most {limits.most_values:,} values")
    hook = None if limits.names_twice else _without_twice
    try:
        parsed = json.loads(text.decode(), object_pairs_hook=hook, parse_int=_whole)
    except (ValueError, RecursionError) as error:
        raise ModelError(field, value, f"is not valid JSON: {error}") from error
    if type(parsed) is not dict:
        raise ModelError(field, parsed, "must be an object with named fields")
    return parsed


def _whole(digits: str) -> int:
    """A number of thousands of digits takes long to read, and no field holds one."""
    if len(digits) > MOST_DIGITS:
        raise ValueError(f"a number of {len(digits):,} digits")
    return int(digits)


def _without_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        [(name, _)] = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"{shorten(name)} is there twice")
    return found
