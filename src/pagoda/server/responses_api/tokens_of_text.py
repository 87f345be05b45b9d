"""Tokens and the texts that they are part of: those of calls are no text's."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

from pagoda.server.reading import TextPiece

Logprob = dict[str, Any]
"""The fields of a `TokenLogprob`."""


class TokensOfText:
    """Log-probabilities of tokens whose text was not told yet, or was found to be no text.

    A token is part of what it begins in, however the answer came.
    """

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, Logprob]] = deque()
        """With where it begins in the answer, in characters."""
        self._end = 0
        """The end of the last text that was told."""

    def add(self, places: Iterable[int], logprobs: Iterable[Logprob]) -> None:
        """The next tokens, with where they begin in the answer."""
        self._waiting.extend(zip(places, logprobs, strict=True))

    def in_text(self, piece: TextPiece) -> list[Logprob]:
        """Those of the text that comes next."""
        self._leave_out_before(piece.start)
        self._end = piece.end
        return self._take_before(piece.end)

    def behind_text(self, num_characters: int) -> list[Logprob]:
        """Those that begin where an answer of so many characters has ended: they are no text."""
        self._leave_out_before(num_characters)
        found = [logprob for _, logprob in self._waiting]
        self._waiting.clear()
        return found

    def _leave_out_before(self, start: int) -> None:
        """What stands between two texts is a call's."""
        if start > self._end:
            self._take_before(start)

    def _take_before(self, end: int) -> list[Logprob]:
        taken = []
        while self._waiting and self._waiting[0][0] < end:
            taken.append(self._waiting.popleft()[1])
        return taken
