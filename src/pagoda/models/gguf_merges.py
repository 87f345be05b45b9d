"""The merges of a SentencePiece vocabulary, which a GGUF file does not list.

A token is made of two others wherever both parts of it are tokens, so that one of 1,000 characters
may be made in 999 ways. Each is written out for the tokenizers library, which would let a file of
some megabytes ask for gigabytes: their number and their text are bounded.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from pagoda.errors import ModelError

MOST_MERGES = 2**20
"""Twice those of the largest vocabulary, Gemma's, which has 262,144 tokens and 514,906 merges."""
MOST_CHARACTERS = 2**24
"""Of all merges: five times those of Gemma."""


def merges_by_score(tokens: Sequence[str], scores: Sequence[float]) -> list[tuple[str, str]]:
    """Every way to make a token of two others, the best token first.

    Raises `ModelError` where they are more than any model has.
    """
    ranks = {token: rank for rank, token in enumerate(tokens)}
    found, num_characters = array("i"), 0
    for token, rank in ranks.items():
        for left, right in _parts(token, ranks):
            found.extend((rank, left, right))
            num_characters += len(token)
        _require_few(len(found) // 3, num_characters)
    made, lefts, rights = np.array(found, np.int32).reshape(-1, 3).T
    order = np.lexsort((rights, lefts, -np.array(scores, np.float64)[made]))
    texts = np.array(tokens, object)
    return list(zip(texts[lefts[order]], texts[rights[order]], strict=True))


def _parts(token: str, ranks: Mapping[str, int]) -> Iterator[tuple[int, int]]:
    """The ranks of both parts of a token, wherever both are tokens."""
    for cut in range(1, len(token)):
        left = ranks.get(token[:cut])
        if left is not None and (right := ranks.get(token[cut:])) is not None:
            yield left, right


def _require_few(num_merges: int, num_characters: int) -> None:
    if num_merges > MOST_MERGES or num_characters > MOST_CHARACTERS:
        limit = (
            f"may be made of others in at most {MOST_MERGES:,} ways, "
            f"of {MOST_CHARACTERS:,} characters in all"
        )
        asked = f"{num_merges:,} merges of {num_characters:,} characters"
        raise ModelError("tokenizer.ggml.tokens", asked, limit)
