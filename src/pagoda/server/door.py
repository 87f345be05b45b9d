"""What every request passes before a route sees it, from the outside in.

CORS          tells browsers which pages of other origins may read what is answered (`cors.py`)
AccessLog     names the request, and tells of it when it has ended (`access_log.py`)
HeadAsGet     answers HEAD as GET, without a body (`head.py`)
HeaderLimit   431 for a line and headers that are too large
HostCheck     403 for a name that is not the server's, where no key is needed (`host_check.py`)
OriginCheck   403 for what a page of another origin makes a browser send (`origin_check.py`)
KeyCheck      401 without a key that opens, 403 where it must be an operator's
BodyLimit     413 for a body that is too large, 408 for one that does not come
Inflation     reads compressed bodies; 415 for other encodings (`inflation.py`)
ValueLimit    400 for a body of too many values (`value_limit.py`)
EntryGate     for routes that make work: waits for the body, then 503 or 429 where the server has
              enough to do
"""

from __future__ import annotations

import asyncio
import base64
import binascii

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pagoda.server.admission import Admission, Places
from pagoda.server.errors import ClientGoneError, RejectedError, client_gone, rejection
from pagoda.server.keys import Holder, KeyRing
from pagoda.server.pending_bodies import PendingBodies

GATED = frozenset(
    {
        "/v1/completions",
        "/v1/chat/completions",
        "/v1/responses",
        "/v1/responses/input_tokens",
        "/v1/messages",
        "/v1/messages/count_tokens",
        "/cache/explain",
        "/tokenize",
        "/detokenize",
    }
)
"""Routes that make work."""
_STORED_RESPONSES = "/v1/responses/"
"""Begins routes that tell responses which were kept, and may be large, or forget them."""
STREAMED = frozenset({"/sessions/import"})
"""Routes that read their bodies themselves, part by part, as far as they want them: they have
bounds of their own, compressed or not."""
FREE = frozenset({"/health", "/ping"})
"""Routes that need no key."""
_OPERATORS = frozenset({"/cache/curve", "/metrics", "/reset_prefix_cache", "/server_info"})
"""Routes that tell what all tenants do, or touch what all of them have."""


def holder_of(scope: Scope) -> Holder:
    """Whose request this is, once it has passed `KeyCheck`."""
    holder: Holder = scope["state"]["holder"]
    return holder


def tenant_of(scope: Scope) -> str:
    """Whose cache the request sees; "" for one that did not pass `KeyCheck`."""
    return holder_of(scope).tenant if "holder" in scope.get("state", {}) else ""


def places_of(scope: Scope) -> Places:
    """What the request holds in the server's admission, once it has passed `EntryGate`."""
    places: Places = scope["state"]["places"]
    return places


class KeyCheck:
    """Lets requests in whose key is known, as `Authorization: Bearer KEY` or `x-api-key: KEY`.

    A browser that asks for a user and a password may send the key as the password.
    """

    def __init__(self, app: ASGIApp, keys: KeyRing) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in FREE:
            try:
                scope.setdefault("state", {})["holder"] = self._holder(scope)
            except RejectedError as error:
                await rejection(error)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _holder(self, scope: Scope) -> Holder:
        holder = self._keys.holder_of(_presented_key(scope))
        if holder is None:
            raise RejectedError(401, "invalid_api_key", "a valid API key is needed")
        if scope["path"] in _OPERATORS and not holder.is_operator:
            limit = "this route is about all tenants: it takes a key of --api-key"
            raise RejectedError(403, "operators_only", limit)
        return holder


class HeaderLimit:
    """Bounds what comes before a body, also where all of it came at once.

    The HTTP parser bounds only what it has to keep until the rest is there.
    """

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and _head_bytes(scope) > self._max_bytes:
            limit = f"a request's line and headers must have at most {self._max_bytes:,} bytes"
            too_large = RejectedError(431, "request_headers_too_large", limit)
            await rejection(too_large)(scope, receive, send)
            return
        await self._app(scope, receive, send)


class BodyLimit:
    """Bounds the size of a body, and the time that it may take to come."""

    def __init__(self, app: ASGIApp, max_bytes: int, timeout_s: float) -> None:
        self._app = app
        self._max_bytes = max_bytes
        self._timeout_s = timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope.get("path") in STREAMED:
            await self._app(scope, receive, send)
            return
        announced = _header(scope, b"content-length")
        if announced is not None and announced.isdigit() and int(announced) > self._max_bytes:
            await rejection(self._too_large())(scope, receive, send)
            return
        num_bytes, is_complete = 0, False
        deadline = asyncio.get_running_loop().time() + self._timeout_s

        async def receive_bounded() -> Message:
            nonlocal num_bytes, is_complete
            if is_complete:  # what is waited for is that the client goes away
                return await receive()
            try:
                async with asyncio.timeout_at(deadline):
                    message = await receive()
            except TimeoutError:
                limit = f"the body did not come within {self._timeout_s:g} seconds"
                raise RejectedError(408, "request_too_slow", limit) from None
            num_bytes += len(message.get("body", b""))
            is_complete = not message.get("more_body", False)
            if num_bytes > self._max_bytes:
                raise self._too_large()
            return message

        await self._app(scope, receive_bounded, send)

    def _too_large(self) -> RejectedError:
        limit = f"the body must have at most {self._max_bytes:,} bytes"
        return RejectedError(413, "request_too_large", limit)


class EntryGate:
    """Holds a place in `admission` for each request to a route that makes work, to its very end.

    It takes the place when the body is there, so that a client who sends none keeps nobody else
    out. The request may take more places (see `places_of`).
    """

    def __init__(self, app: ASGIApp, admission: Admission, bodies: PendingBodies) -> None:
        self._app = app
        self._admission = admission
        self._bodies = bodies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not _is_gated(scope):
            await self._app(scope, receive, send)
            return
        came_at = asyncio.get_running_loop().time()
        try:
            self._admission.require_open()
            received = await self._bodies.received(tenant_of(scope), receive)
            with self._admission.entered(tenant_of(scope), came_at) as places:
                scope.setdefault("state", {})["places"] = places
                await self._app(scope, received, send)
        except RejectedError as error:
            await rejection(error)(scope, receive, send)
        except ClientGoneError:
            await client_gone()(scope, receive, send)


def _is_gated(scope: Scope) -> bool:
    """It makes work or has a large answer; to forget a response makes room instead."""
    tells_stored = scope["path"].startswith(_STORED_RESPONSES) and scope["method"] != "DELETE"
    return scope["path"] in GATED or tells_stored


def _presented_key(scope: Scope) -> str | None:
    value = _header(scope, b"authorization")
    if value is None:
        own = _header(scope, b"x-api-key")
        return None if own is None else own.decode("latin-1").strip()
    scheme, _, rest = value.decode("latin-1").partition(" ")
    if scheme.lower() == "bearer":
        return rest.strip()
    if scheme.lower() == "basic":
        try:
            decoded = base64.b64decode(rest.strip(), validate=True).decode("utf-8")
        except (binascii.Error, UnicodeDecodeError, ValueError):
            return None
        return decoded.partition(":")[2]
    return None


def _head_bytes(scope: Scope) -> int:
    """Size of a request's line and headers, as HTTP/1.1 writes them."""
    target = len(scope.get("raw_path") or scope["path"].encode())
    if scope["query_string"]:
        target += len("?") + len(scope["query_string"])
    line = len(scope["method"]) + target + len("  HTTP/1.1\r\n")
    headers = sum(len(name) + len(value) + len(": \r\n") for name, value in scope["headers"])
    return line + headers + len("\r\n")


def _header(scope: Scope, name: bytes) -> bytes | None:
    for key, value in scope["headers"]:
        if key == name:
            return bytes(value)
    return None
