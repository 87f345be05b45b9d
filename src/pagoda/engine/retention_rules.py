"""Which retention a request may ask for."""

from __future__ import annotations

from dataclasses import dataclass

from pagoda.cache import AttentionWindow
from pagoda.cache.retention import parse_retention, require_retention
from pagoda.errors import InvalidOptionError, InvalidRequestError


@dataclass(frozen=True, slots=True)
class RetentionRules:
    """Of one engine."""

    own: AttentionWindow
    """What it keeps of requests that do not say."""
    block_size: int
    most_tokens: int
    """Positions that the model was made for."""
    takes_requests: bool
    """Requests may say."""

    def check(self, asked: str | None) -> None:
        """Raises `InvalidRequestError` for what a request may not ask for."""
        if asked is None:
            return
        try:
            wanted = parse_retention(asked)
            require_retention(wanted, block_size=self.block_size, most_tokens=self.most_tokens)
        except InvalidOptionError as error:
            raise InvalidRequestError(error.field, error.value, error.limit) from None
        if wanted == self.own:
            return
        if not self.takes_requests:
            limit = f"this engine keeps {self.own} of every request; --request-kv-retention lets "
            limit += "requests choose"
            raise InvalidRequestError("kv_retention", asked, limit)
        if self.own.narrowed(wanted) != wanted:
            limit = f"at most what this engine keeps, {self.own}"
            raise InvalidRequestError("kv_retention", asked, limit)
