"""Text that has far too many tokens, found out without tokenising all of it."""

from __future__ import annotations

from collections.abc import Callable

_CHARACTERS_PER_TOKEN = 4
"""Text with fewer for each token that it may have is tokenised at once."""
_LEAST_PIECE = 4096
"""Characters; the few tokens that a cut adds count for nothing beside those of a piece."""


def is_far_too_long(text: str, most_tokens: int, count: Callable[[str], int]) -> bool:
    """Whether pieces of `text` have more than twice `most_tokens`, counted until they do.

    `count` says how many tokens a text has. Where a piece begins or ends a token or two may be
    others than in the whole, so what is not far too long may still be too long.
    """
    if len(text) <= max(_LEAST_PIECE, _CHARACTERS_PER_TOKEN * most_tokens):
        return False
    num_tokens = 0
    size = max(_LEAST_PIECE, most_tokens // 2)
    for start in range(0, len(text), size):
        num_tokens += count(text[start : start + size])
        if num_tokens > 2 * most_tokens:
            return True
    return False
