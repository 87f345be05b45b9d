"""What tokens that are told with log-probabilities are called."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TokenNames:
    """The names of a vocabulary's tokens."""

    token_bytes: Callable[[int], bytes]
    """The bytes of a token's UTF-8, whole characters or parts of one."""
    as_ids: bool = False
    """Names are `token_id:17`."""

    def text(self, token_id: int) -> str:
        """The token as text; U+FFFD for bytes that are no character by themselves."""
        if self.as_ids:
            return f"token_id:{token_id}"
        return self.token_bytes(token_id).decode("utf-8", "replace")

    def key(self, token_id: int) -> str:
        r"""The same, but `bytes:\xf0\x9f` for a part of a character, as in OpenAI's completions:
        as text all parts would have one name."""
        if self.as_ids:
            return f"token_id:{token_id}"
        spelt = self.token_bytes(token_id)
        try:
            return spelt.decode()
        except UnicodeDecodeError:
            return f"bytes:{spelt.decode('ascii', 'backslashreplace')}"
