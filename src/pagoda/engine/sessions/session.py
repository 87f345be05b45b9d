"""A conversation by name: which tokens of it have been computed, and what they depend on."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, field

from pagoda.cache.retention import parse_retention
from pagoda.cache.window import FULL_ATTENTION, AttentionWindow
from pagoda.errors import InvalidOptionError, InvalidRequestError
from pagoda.request import require_session_id

_HEAD = struct.Struct("<I")
_MOST_HEAD_BYTES = 16 * 2**10
_TOKEN_BYTES = 4


@dataclass(frozen=True, slots=True)
class Session:
    """Immutable: what comes later makes another one of the same id."""

    tenant: str
    session_id: str
    tokens: bytes = field(repr=False)
    """Token ids, `pagoda.cache.prefix.packed`, prompts and answers alike."""
    used_at: float
    """When the last request ended, in seconds since 1970."""
    cache_salt: str = field(default="", repr=False)
    retention: str = ""
    """Which tokens stay in the cache, by a name of `pagoda.cache.retention`; "": all."""

    @property
    def num_tokens(self) -> int:
        return len(self.tokens) // _TOKEN_BYTES

    def token_ids(self) -> list[int]:
        return memoryview(self.tokens).cast("I").tolist()

    @property
    def window(self) -> AttentionWindow:
        """What rows see."""
        return parse_retention(self.retention) if self.retention else FULL_ATTENTION

    def to_bytes(self) -> bytes:
        """All but the tenant, which whoever reads it is to know."""
        told = {
            "id": self.session_id,
            "salt": self.cache_salt,
            "retention": self.retention,
            "used_at": self.used_at,
        }
        head = json.dumps(told, separators=(",", ":")).encode("ascii")
        return _HEAD.pack(len(head)) + head + self.tokens


def most_bytes(max_tokens: int) -> int:
    """Of `Session.to_bytes`, for so many tokens."""
    return _HEAD.size + _MOST_HEAD_BYTES + max_tokens * _TOKEN_BYTES


def read_session(tenant: str, content: bytes) -> Session | None:
    """What `Session.to_bytes` gave, as a session of this tenant; None where it is something
    else."""
    start = _HEAD.size
    if len(content) < start:
        return None
    stop = start + _HEAD.unpack(content[:start])[0]
    tokens = content[stop:]
    if stop - start > _MOST_HEAD_BYTES or stop > len(content) or len(tokens) % _TOKEN_BYTES:
        return None
    try:
        told = json.loads(content[start:stop])
        found = Session(
            tenant,
            require_session_id(told["id"]),
            tokens,
            float(told["used_at"]),
            str(told["salt"]),
            str(told["retention"]),
        )
        found.window  # noqa: B018 - of a name that there is
    except (ValueError, LookupError, TypeError, InvalidOptionError, InvalidRequestError):
        return None
    return found
