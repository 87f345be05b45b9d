"""Why something cannot be done with a session."""

from __future__ import annotations

from pagoda.errors import EngineError, InvalidRequestError, RefusedError


class UnknownSessionError(InvalidRequestError):
    """Whoever asks has no session of that id, whether another has one or nobody (HTTP 404)."""

    def __init__(self, session_id: str) -> None:
        super().__init__("session_id", session_id, "no such session is known")


class NoCachingError(RefusedError):
    """Blocks of sessions are not found."""

    def __init__(self) -> None:
        limit = "blocks are found by prefix caching alone, those of sessions too: leave it on"
        super().__init__("enable_prefix_caching", False, limit)


class NoTierError(RefusedError):
    """There is nowhere to save a session."""

    def __init__(self) -> None:
        limit = (
            "sessions are saved in a tier: start with --kv-tier, like disk:PATH,size=20GiB; on a "
            "CPU host is none, since the cache lies in main memory itself"
        )
        super().__init__("kv_tier", "none in use", limit)


class NoKeyError(RefusedError):
    """There is nothing to seal a session with."""

    def __init__(self) -> None:
        limit = (
            "sessions leave a server sealed: `pagoda tiers new-key FILE` makes a key, and both "
            "servers are started with it as --kv-tier-key-file FILE"
        )
        super().__init__("kv_tier_key_file", None, limit)


class NothingCachedError(RefusedError):
    """No block of a session is in the cache any more."""

    def __init__(self, session_id: str) -> None:
        limit = "none of its blocks is in the cache: restore it, or go on with it, before"
        super().__init__("session_id", session_id, limit)


class SessionFileError(RefusedError):
    """A file is no session, or none that can be gone on with here."""

    def __init__(self, what: str, limit: str) -> None:
        """`what`: which part of it, or in a word what is wrong."""
        super().__init__("file", what, limit)


class SessionFailedError(EngineError):
    """What was asked for could not be done, by nobody's fault who asked (HTTP 503)."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the session: {reason}")
