"""What is answered about sessions."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel

from pagoda.engine.sessions.reports import PresentSession, SavedSession
from pagoda.engine.sessions.session import Session


class SessionBody(BaseModel):
    """A session that the server remembers."""

    id: str
    object: Literal["session"] = "session"
    num_tokens: int
    """That were computed in its requests, up to the end of the last one."""
    used_at: float
    """When that was, in seconds since 1970."""

    @classmethod
    def of(cls, session: Session) -> SessionBody:
        return cls(id=session.session_id, num_tokens=session.num_tokens, used_at=session.used_at)


class SessionList(BaseModel):
    """A tenant's own, the one that was used last first."""

    object: Literal["list"] = "list"
    data: list[SessionBody]


class SavedBody(BaseModel):
    """A session that was saved."""

    id: str
    object: Literal["session"] = "session"
    num_tokens: int
    num_saved_tokens: int
    """Of its leading full blocks, which lie in a tier now."""

    @classmethod
    def of(cls, saved: SavedSession) -> SavedBody:
        return cls(
            id=saved.session_id,
            num_tokens=saved.num_tokens,
            num_saved_tokens=saved.num_saved_tokens,
        )


class PresentBody(BaseModel):
    """A session that was restored or imported."""

    id: str
    object: Literal["session"] = "session"
    num_tokens: int
    num_cached_tokens: int
    """Of its leading full blocks, which are in the cache now."""
    reason: str | None
    """Why these are not all: no_room, not_found or not_in_file."""

    @classmethod
    def of(cls, present: PresentSession) -> PresentBody:
        return cls(
            id=present.session_id,
            num_tokens=present.num_tokens,
            num_cached_tokens=present.num_cached_tokens,
            reason=present.reason,
        )


class DeletedSession(BaseModel):
    """A session that was forgotten."""

    id: str
    object: Literal["session"] = "session"
    deleted: Literal[True] = True
