"""One line in the log for each HTTP request when it ends, and an id that names it.

The line tells who asked for what and how much, and of an error its code and the field at fault,
never what was said: no key, no prompt, no answer, no value, and of the address the path alone.
"""

from __future__ import annotations

import logging
import time
import uuid
from typing import Any
from urllib.parse import quote

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pagoda.server.door import tenant_of
from pagoda.server.errors import CLIENT_CLOSED_REQUEST, error_response, failed
from pagoda.server.recent_lookups import RecentLookups
from pagoda.server.tally import Tally, tally_of
from pagoda.server.traffic import Traffic

logger = logging.getLogger("pagoda.access")

REQUEST_ID = "x-request-id"
_TOLD_AS = (REQUEST_ID, "request-id")
"""Anthropic's clients know the second one."""
_MOST_ID_CHARACTERS = 128
_MOST_PATH_CHARACTERS = 256
_WATCHED = frozenset({"/health", "/metrics", "/ping"})
"""Routes that are asked every few seconds: logged at debug level."""


class AccessLog:
    """Logs and counts requests, remembers their lookups, and puts an id on every response.

    The client's own id is kept where it is sane; what crashes inside is answered with 500 here,
    so that it has an id too, and then goes on to the web framework's log.
    """

    def __init__(self, app: ASGIApp, traffic: Traffic, recent: RecentLookups) -> None:
        self._app = app
        self._traffic = traffic
        self._recent = recent

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.monotonic()
        request_id = _request_id(scope)
        tally = tally_of(scope)
        tally.request_id = request_id
        status: int | None = None

        async def send_named(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers.update(dict.fromkeys(_TOLD_AS, request_id))
            await send(message)

        try:
            await self._app(scope, receive, send_named)
        except Exception:
            if status is None:
                await error_response(500, failed())(scope, receive, send_named)
            raise
        finally:
            status = status or CLIENT_CLOSED_REQUEST
            self._traffic.note(scope, status)
            self._recent.note(tenant_of(scope), tally)
            duration_s = time.monotonic() - started
            _log(scope, _fields(scope, status, duration_s, request_id, tally))


def _request_id(scope: Scope) -> str:
    """The client's, if it can be shown in a line; else a new one."""
    given = Headers(scope=scope).get(REQUEST_ID, "")
    is_sane = given.isascii() and given.isprintable() and " " not in given
    if given and is_sane and len(given) <= _MOST_ID_CHARACTERS:
        return given
    return uuid.uuid4().hex


def _fields(
    scope: Scope, status: int, duration_s: float, request_id: str, tally: Tally
) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "method": scope["method"],
        "path": quote(scope["path"])[:_MOST_PATH_CHARACTERS],
        "status": status,
        "duration_ms": round(duration_s * 1000, 1),
        "tenant": tenant_of(scope),
        "request_id": request_id,
    }
    if tally.answer_id is not None:
        fields["answer_id"] = tally.answer_id
    if tally.is_streamed is not None:
        fields["streamed"] = tally.is_streamed
    if tally.is_known:
        fields["prompt_tokens"] = tally.num_prompt_tokens
        fields["cached_tokens"] = tally.num_cached_tokens
        if missed := tally.missed():
            fields["missed"] = ",".join(f"{cause}:{missed[cause]}" for cause in missed)
        fields["output_tokens"] = tally.num_output_tokens
    if tally.ignored:
        fields["ignored"] = ",".join(quote(name, safe="[].") for name in tally.ignored)
    if tally.error is not None:
        fields["error"] = tally.error
    if tally.error_param is not None:
        fields["error_param"] = quote(tally.error_param, safe="[].")
    return fields


def _log(scope: Scope, fields: dict[str, Any]) -> None:
    level = logging.DEBUG if scope["path"] in _WATCHED else logging.INFO
    if logger.isEnabledFor(level):
        line = " ".join(f"{name}={value}" for name, value in fields.items() if value != "")
        logger.log(level, "%s", line, extra={"fields": fields})
