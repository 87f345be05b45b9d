"""What can be set on the server, beside its engine."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pagoda.errors import InvalidOptionError

_WHOLE = ("max_num_queued_reqs", "max_num_reqs_per_key", "max_body_bytes", "max_header_bytes")
LOG_FORMATS = ("text", "json")
_SECONDS = ("request_timeout", "client_timeout", "shutdown_timeout", "step_timeout")


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """Limits that hold by default. Raises `InvalidOptionError` for one out of range."""

    max_num_queued_reqs: int = 256
    """Sequences that wait beside those that run; one more is told 503."""
    max_num_reqs_per_key: int | None = None
    """Sequences of one tenant at a time; one more is told 429. None: all places, but where there
    are several tenants, no more than it leaves free."""
    max_body_bytes: int = 8 * 2**20
    """The largest body of a request."""
    max_header_bytes: int = 64 * 2**10
    """The largest line and headers of a request, together."""
    request_timeout: float = 600.0
    """Seconds from a request's arrival to its last token."""
    client_timeout: float = 30.0
    """Seconds that a client may take for its headers, and for its body."""
    shutdown_timeout: float = 30.0
    """Seconds that running requests have to finish once the server is told to stop."""
    step_timeout: float = 300.0
    """Seconds after which a step of the engine hangs; a step may take longer that has more tokens
    than ten times the mean pace brings through in that time."""
    exit_on_hang: bool = False
    """Ends the process when a step hangs, for a supervisor to start it again."""
    dev_mode: bool = False
    """Adds routes for developers: /reset_prefix_cache and /server_info."""
    log_format: str = "text"
    """How the log is written: one of `LOG_FORMATS`."""
    disable_log_stats: bool = False
    """Leaves out the line that tells every ten seconds how the engine is doing."""

    def __post_init__(self) -> None:
        for name in _WHOLE:
            value = getattr(self, name)
            least = 0 if name == "max_num_queued_reqs" else 1
            if value is not None and (not _is_whole(value) or value < least):
                raise InvalidOptionError(name, value, f"must be a whole number from {least} on")
        for name in _SECONDS:
            value = getattr(self, name)
            if not isinstance(value, (int, float)) or not 0 <= value < math.inf:
                raise InvalidOptionError(name, value, "must be a number of seconds")
        for name in ("client_timeout", "step_timeout"):
            if getattr(self, name) == 0:
                raise InvalidOptionError(name, 0, "must be more than 0 seconds")
        if self.log_format not in LOG_FORMATS:
            limit = f"one of {', '.join(LOG_FORMATS)}"
            raise InvalidOptionError("log_format", self.log_format, limit)


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
