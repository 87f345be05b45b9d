"""What came of something that was done with a session."""

from __future__ import annotations

from dataclasses import dataclass
from typing import BinaryIO


@dataclass(frozen=True, slots=True)
class SavedSession:
    """A session that lies in the tiers now, as far as that is."""

    session_id: str
    """By which it is restored, or asked with."""
    num_tokens: int
    """Of all of it."""
    num_saved_tokens: int
    """Of its leading full blocks, which are in a tier."""


@dataclass(frozen=True, slots=True)
class PresentSession:
    """A session that was brought into the cache, as far as there was room."""

    session_id: str
    """By which it is restored, or asked with."""
    num_tokens: int
    """Of all of it."""
    num_cached_tokens: int
    """Of its leading full blocks, which are in the cache."""
    reason: str | None
    """Why it is not all full blocks; None: it is."""


@dataclass(frozen=True, slots=True)
class ExportedSession:
    """A session as a file, which its receiver closes."""

    session_id: str
    """By which it is restored, or asked with."""
    num_tokens: int
    """Of all of it."""
    num_exported_tokens: int
    """Of its leading full blocks, which are in the file."""
    file: BinaryIO
    """At its begin; nobody else finds it, and it goes when it is closed."""
    num_bytes: int
    """Of the file."""


NO_ROOM = "no_room"
"""Blocks are missing because the pool had no room for them, or others compute them just now."""
NOT_FOUND = "not_found"
"""They are in no tier any more, or could not be read."""
NOT_IN_FILE = "not_in_file"
"""They were in no cache any more when the file was made."""
