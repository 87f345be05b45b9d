"""Single signs of GBNF: the characters that they stand for, and how often."""

from __future__ import annotations

import re
from collections.abc import Iterator

from pagoda.engine.gbnf.tree import Token

MAX_REPEATS = 10_000

_CHARACTER = re.compile(
    r"\\(?:x(?P<x>[0-9A-Fa-f]{2})|u(?P<u>[0-9A-Fa-f]{4})|U(?P<U>[0-9A-Fa-f]{8})|(?P<other>.))|."
)
_ESCAPED = {"n": "\n", "r": "\r", "t": "\t", **{each: each for each in '\\"[]^-'}}
_REPEATS: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}


def require_readable(token: Token) -> None:
    """Raises `ValueError` for a text or a class that stands for nothing."""
    if token.kind == "text":
        said_of(token)
    elif token.kind == "characters":
        ranges_of(token)


def said_of(token: Token) -> str:
    """What a text stands for. Raises `ValueError`."""
    matches = _CHARACTER.finditer(token.text, 1, len(token.text) - 1)
    return "".join(map(_character, matches))


def is_negated(token: Token) -> bool:
    """Whether a class stands for all characters but those of its ranges."""
    return token.text.startswith("[^")


def ranges_of(token: Token) -> list[tuple[str, str]]:
    """The first and the last character of each range in a class. Raises `ValueError`."""
    start, end = 2 if is_negated(token) else 1, len(token.text) - 1
    if start == end:
        raise ValueError("a class needs characters")
    ranges = list(_ranges(list(_CHARACTER.finditer(token.text, start, end))))
    for low, high in ranges:
        if high < low:
            raise ValueError(f"{low}-{high} ends before it begins")
    return ranges


def repeats_of(text: str) -> tuple[int, int | None]:
    """How often at least and at most; None: without end. Raises `ValueError`."""
    if text in _REPEATS:
        return _REPEATS[text]
    first, comma, second = text[1:-1].replace(" ", "").partition(",")
    least, most = int(first), int(second) if second else None
    if not comma:
        most = least
    if (least if most is None else most) > MAX_REPEATS:
        raise ValueError(f"at most {MAX_REPEATS} times")
    if most is not None and most < least:
        raise ValueError(f"{least} is more than {most}")
    return least, most


def _character(match: re.Match[str]) -> str:
    """What one character of a text or a class stands for. Raises `ValueError`."""
    code = match["x"] or match["u"] or match["U"]
    if code is not None:
        number = int(code, 16)
        if number > 0x10FFFF or 0xD800 <= number < 0xE000:
            raise ValueError(f"{match[0]} is no character")
        return chr(number)
    if match["other"] is None:
        return match[0]
    if match["other"] not in _ESCAPED:
        raise ValueError(f"{match[0]} is no escape")
    return _ESCAPED[match["other"]]


def _ranges(characters: list[re.Match[str]]) -> Iterator[tuple[str, str]]:
    """One character alone is both ends."""
    at = 0
    while at < len(characters):
        is_range = at + 2 < len(characters) and characters[at + 1][0] == "-"
        last = at + 2 if is_range else at
        yield _character(characters[at]), _character(characters[last])
        at = last + 1
