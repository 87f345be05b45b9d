"""Texts that come in parts, where a part may end in the middle of a character.

JSON writes a character beyond 16 bits as a surrogate pair, and a server that cuts its texts after
UTF-16's units sends half of one here and half of it in the next part.
"""

from __future__ import annotations

_FIRST_HALVES = ("\ud800", "\udbff")
_UTF_16 = "utf-16-le"


def joined(text: str, more: str) -> str:
    """Both texts, pairs within `more` or between the two as the characters that they stand for.

    The first half of a pair may be left at the end. Raises `UnicodeError` for another half.
    """
    body = without_half(text)
    units = (text[len(body) :] + more).encode(_UTF_16, "surrogatepass")
    whole = units.decode(_UTF_16, "surrogatepass")
    without_half(whole).encode()
    return body + whole


def without_half(text: str) -> str:
    """The text without the first half of a pair at its end."""
    low, high = _FIRST_HALVES
    return text[:-1] if text and low <= text[-1] <= high else text
