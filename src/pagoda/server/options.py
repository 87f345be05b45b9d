"""What can be set on the server, beside its engine."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from pagoda.errors import InvalidOptionError, InvalidRequestError
from pagoda.models.chat_options import ChatOptions, TemplateValue
from pagoda.server.thought_forms import THOUGHT_FORMS

_WHOLE = (
    "max_num_queued_reqs",
    "max_num_reqs_per_key",
    "max_num_connections",
    "max_body_bytes",
    "max_header_bytes",
    "response_store_bytes",
    "record_trace_bytes",
)
_FROM_ZERO = ("max_num_queued_reqs", "response_store_bytes")
_NAMES = ("allowed_hosts", "allowed_origins", "allowed_methods", "allowed_headers")
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/\s?#@]+|null")
_HOST = re.compile(r"\[?[0-9A-Fa-f:.%]+\]?|[^/\s?#@:\[\]]+")
LOG_FORMATS = ("text", "json")
REASONING_PARSERS = ("auto", "none", *sorted(THOUGHT_FORMS))
_SECONDS = ("request_timeout", "client_timeout", "shutdown_timeout", "step_timeout")


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """Limits that hold by default. Raises `InvalidOptionError` for one out of range."""

    max_num_queued_reqs: int = 256
    """Sequences that wait beside those that run; one more is told 503."""
    max_num_reqs_per_key: int | None = None
    """Sequences of one tenant at a time; one more is told 429. None: all places, but where there
    are several tenants, no more than it leaves free."""
    max_num_connections: int | None = None
    """Connections at a time; one more closes one that rests, or is closed itself. None: 4,096, or
    fewer where the process may not open as many files."""
    max_body_bytes: int = 8 * 2**20
    """The largest body of a request."""
    max_header_bytes: int = 64 * 2**10
    """The largest line and headers of a request, together."""
    response_store_bytes: int = 32 * 2**20
    """Responses of one tenant that are kept, in main memory; 0 keeps none."""
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
    allowed_hosts: tuple[str, ...] = ()
    """Names that a server without keys answers to, beside this machine's; "*": to all."""
    allowed_origins: tuple[str, ...] = ()
    """Origins whose pages may ask and read answers, like "https://chat.example"; "*": all."""
    allowed_methods: tuple[str, ...] = ("*",)
    """Methods that these pages may use."""
    allowed_headers: tuple[str, ...] = ("*",)
    """Headers that these pages may send."""
    allow_credentials: bool = False
    """Lets browsers send the passwords that they know along with what these pages ask."""
    dev_mode: bool = False
    """Adds routes for developers: /reset_prefix_cache and /server_info."""
    record_trace: str | None = None
    """A file that tells what is needed to replay the day, and never what was said."""
    record_trace_bytes: int = 256 * 2**20
    """Of that file and older ones together."""
    usage_file: str | None = None
    """A file that keeps what tenants have had over starts of the server."""
    log_format: str = "text"
    """How the log is written: one of `LOG_FORMATS`."""
    reasoning_parser: str = "auto"
    """The form of what the model thinks before it answers, one of `REASONING_PARSERS`; auto: as
    its chat template says; none: what is thought is part of the answer."""
    default_chat_template_kwargs: Mapping[str, TemplateValue] | None = None
    """What chat templates are given where a request does not say otherwise."""
    disable_log_stats: bool = False
    """Leaves out the line that tells every ten seconds how the engine is doing."""

    def __post_init__(self) -> None:
        for name in _WHOLE:
            value = getattr(self, name)
            least = 0 if name in _FROM_ZERO else 1
            if value is not None and (not _is_whole(value) or value < least):
                raise InvalidOptionError(name, value, f"must be a whole number from {least} on")
        for name in _NAMES:
            names = getattr(self, name)
            if not all(isinstance(each, str) and each for each in names):
                raise InvalidOptionError(name, names, "must be a list of texts")
        _require_each("allowed_origins", self.allowed_origins, _ORIGIN, "like https://chat.example")
        _require_each("allowed_hosts", self.allowed_hosts, _HOST, "a name like models.example")
        for name in _SECONDS:
            value = getattr(self, name)
            if not isinstance(value, (int, float)) or not 0 <= value < math.inf:
                raise InvalidOptionError(name, value, "must be a number of seconds")
        if self.allow_credentials and "*" in self.allowed_origins:
            limit = "name the origins: with * any page could use a browser's password"
            raise InvalidOptionError("allow_credentials", True, limit)
        for name in ("client_timeout", "step_timeout"):
            if getattr(self, name) == 0:
                raise InvalidOptionError(name, 0, "must be more than 0 seconds")
        if self.reasoning_parser not in REASONING_PARSERS:
            limit = f"one of {', '.join(REASONING_PARSERS)}"
            raise InvalidOptionError("reasoning_parser", self.reasoning_parser, limit)
        _require_kwargs(self.default_chat_template_kwargs)
        if self.log_format not in LOG_FORMATS:
            limit = f"one of {', '.join(LOG_FORMATS)}"
            raise InvalidOptionError("log_format", self.log_format, limit)


def _require_kwargs(given: Mapping[str, TemplateValue] | None) -> None:
    try:
        ChatOptions(template_kwargs=given or {})
    except InvalidRequestError as error:
        raise InvalidOptionError("default_chat_template_kwargs", error.value, error.limit) from None


def _require_each(name: str, given: tuple[str, ...], form: re.Pattern[str], words: str) -> None:
    for each in given:
        if each != "*" and not form.fullmatch(each):
            raise InvalidOptionError(name, each, f"must be {words}, or *; browsers send no more")


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
