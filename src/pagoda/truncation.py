"""How a prompt that may be too long is cut: its beginning goes, its end stays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pagoda.errors import InvalidRequestError
from pagoda.limits import Whole

_MOST = Whole(1, 2**31 - 1, or_none=True)
MOST_ROOM = 2**31 - 1
_ROOM = Whole(1, MOST_ROOM)


@dataclass(frozen=True, slots=True)
class Truncation:
    """The last tokens of a prompt that are taken. Raises `InvalidRequestError`."""

    most: int | None = None
    """So many; None: as many as leave `room` for the answer."""
    room: int = 1
    """Tokens that the answer may have."""

    def __post_init__(self) -> None:
        most = self.most
        if isinstance(most, int) and most < 1:
            limit = "must be at least 1, or -1 for as many tokens as leave room for the answer"
            raise InvalidRequestError("truncate_prompt_tokens", most, limit)
        _MOST.check("truncate_prompt_tokens", most)
        _ROOM.check("max_tokens", self.room)

    def most_tokens(self, max_model_len: int) -> int:
        """What a prompt may keep of a model's length, both in tokens: at least 1."""
        return max(1, max_model_len - self.room) if self.most is None else self.most


def truncated(
    token_ids: Sequence[int], truncation: Truncation | None, max_model_len: int
) -> Sequence[int]:
    """The end of a prompt that is taken: all of it without a truncation."""
    if truncation is None:
        return token_ids
    return token_ids[-truncation.most_tokens(max_model_len) :]
