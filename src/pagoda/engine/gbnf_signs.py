"""Single signs of GBNF in the notation of Lark: texts, classes of characters, repeats."""

from __future__ import annotations

import re
from collections.abc import Iterator

from pagoda.engine.lark_text import lark_text

MAX_REPEATS = 10_000
NO_REPEATS = "{0,0}"
"""Leaves nothing of what stands before it; llguidance has no sign for that."""

_CHARACTER = re.compile(
    r"\\(?:x(?P<x>[0-9A-Fa-f]{2})|u(?P<u>[0-9A-Fa-f]{4})|U(?P<U>[0-9A-Fa-f]{8})|(?P<other>.))|."
)
_ESCAPED = {"n": "\n", "r": "\r", "t": "\t", **{each: each for each in '\\"[]^-'}}


def in_lark(kind: str, text: str) -> str:
    """A sign of that kind. Raises `ValueError` for one that stands for nothing."""
    return _IN_LARK.get(kind, str)(text)


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


def _text_in_lark(text: str) -> str:
    said = "".join(map(_character, _CHARACTER.finditer(text, 1, len(text) - 1)))
    return lark_text(said)


def _class_in_lark(text: str) -> str:
    sign = "^" if text.startswith("[^") else ""
    start, end = 1 + len(sign), len(text) - 1
    if start == end:
        raise ValueError("a class needs characters")
    inside = []
    for low, high in _ranges(list(_CHARACTER.finditer(text, start, end))):
        if high < low:
            raise ValueError(f"{low}-{high} ends before it begins")
        ends = (low, high) if low < high else (low,)
        inside.append("-".join(rf"\u{{{ord(each):x}}}" for each in ends))
    return f"/[{sign}{''.join(inside)}]/"


def _ranges(characters: list[re.Match[str]]) -> Iterator[tuple[str, str]]:
    """The first and the last character of each range in a class; one alone is both."""
    at = 0
    while at < len(characters):
        is_range = at + 2 < len(characters) and characters[at + 1][0] == "-"
        last = at + 2 if is_range else at
        yield _character(characters[at]), _character(characters[last])
        at = last + 1


def _repeats_in_lark(text: str) -> str:
    if not text.startswith("{"):
        return text
    least, comma, most = text[1:-1].replace(" ", "").partition(",")
    if not comma:
        most = least
    if int(most or least) > MAX_REPEATS:
        raise ValueError(f"at most {MAX_REPEATS} times")
    if most and int(most) < int(least):
        raise ValueError(f"{least} is more than {most}")
    return f"{{{least},{most}}}"


_IN_LARK = {
    "text": _text_in_lark,
    "characters": _class_in_lark,
    "any": lambda _: "/(?s:.)/",
    "repeats": _repeats_in_lark,
}
