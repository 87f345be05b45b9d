"""Where tokens begin in the text that they are."""

from __future__ import annotations

import codecs
from collections.abc import Iterable


class TextOffsets:
    """Places of tokens in a text that grows, in characters.

    Tokens that are parts of one character all begin where that does, so places never go back.
    """

    def __init__(self, start: int = 0) -> None:
        self._next = start
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def of(self, tokens: Iterable[bytes]) -> list[int]:
        """The places of the next tokens, which are given as the bytes that they stand for."""
        places = []
        for token in tokens:
            places.append(self._next)
            self._next += len(self._decoder.decode(token))
        return places
