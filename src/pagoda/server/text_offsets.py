"""Where tokens begin in the text that they are."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterable, Sequence, Set


class TextOffsets:
    """Places of tokens in a text that grows, in characters.

    Tokens that are parts of one character all begin where that does, so places never go back.
    """

    def __init__(self, start: int = 0) -> None:
        self._next = start
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def of(self, tokens: Iterable[bytes]) -> list[int]:
        """The places of the next tokens, given as the bytes that they are in the text."""
        places = []
        for token in tokens:
            places.append(self._next)
            self._next += len(self._decoder.decode(token))
        return places


def offsets_in(
    text: str, token_ids: Sequence[int], token_bytes: Callable[[int], bytes], special_ids: Set[int]
) -> list[int]:
    """Places of a prompt's tokens in its `text`, in characters; none lies beyond its end.

    What the tokenizer adds is not in the text: special tokens around it, a space before it.
    """
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    place, places = 0, []
    for token_id in token_ids:
        places.append(min(place, len(text)))
        said = decoder.decode(token_bytes(token_id))
        is_in_text = text.startswith(said, place)
        if place == 0 and said.startswith(" ") and not is_in_text:
            said = said[1:]
        if is_in_text or token_id not in special_ids:
            place += len(said)
    return places
