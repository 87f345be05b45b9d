"""Compressed bodies, inflated as they are read."""

from __future__ import annotations

import zlib

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pagoda.server.errors import RejectedError, rejection

ENCODINGS = ("gzip", "deflate")
_ALIASES = {"x-gzip"}
_PART_BYTES = 64 * 2**10
"""What is inflated at a time."""
_ANY_HEADER = zlib.MAX_WBITS + 32
"""zlib finds out whether it is gzip's or its own."""


class Inflation:
    """Hands bodies on as they were before a client compressed them, at most `max_bytes` of them.

    A small body that would inflate to a large one takes `max_bytes` of memory and is told 413.
    """

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        encoding = "identity"
        if scope["type"] == "http":
            encoding = Headers(scope=scope).get("content-encoding", encoding).strip().lower()
        if encoding == "identity":
            await self._app(scope, receive, send)
        elif encoding in _ALIASES or encoding in ENCODINGS:
            scope["headers"] = [
                (name, value)
                for name, value in scope["headers"]
                if name not in (b"content-encoding", b"content-length")
            ]
            await self._app(scope, _InflatedBody(receive, self._max_bytes).receive, send)
        else:
            limit = f"Content-Encoding must be one of {', '.join(ENCODINGS)}"
            unknown = rejection(RejectedError(415, "unsupported_content_encoding", limit))
            unknown.headers["Accept-Encoding"] = ", ".join(ENCODINGS)
            await unknown(scope, receive, send)


class _InflatedBody:
    """One body, read in parts."""

    def __init__(self, receive: Receive, max_bytes: int) -> None:
        self._receive = receive
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._inflater = zlib.decompressobj(_ANY_HEADER)
        self._compressed = b""
        """What came and is not inflated yet."""
        self._has_more = True
        self._is_complete = False

    async def receive(self) -> Message:
        """The next part of the body, and after the last one whatever else is received.

        Raises `RejectedError` where there is too much, and for what cannot be read.
        """
        if self._is_complete:
            return await self._receive()
        while not (part := self._next_part()) and self._has_more:
            message = await self._receive()
            if message["type"] != "http.request":
                return message
            self._compressed = message.get("body", b"")
            self._has_more = message.get("more_body", False)
        self._is_complete = not part
        if self._is_complete and not self._inflater.eof:
            raise _unreadable("the compressed body ends too early")
        return {"type": "http.request", "body": part, "more_body": not self._is_complete}

    def _next_part(self) -> bytes:
        """Some bytes more; none where more must come first."""
        part = b""
        while not part:
            if self._inflater.eof and self._compressed:  # gzip's may be several in a row
                self._inflater = zlib.decompressobj(_ANY_HEADER)
            try:
                part = self._inflater.decompress(self._compressed, _PART_BYTES)
            except zlib.error:
                raise _unreadable("the body is neither gzip nor deflate") from None
            self._compressed = self._inflater.unconsumed_tail or self._inflater.unused_data
            if not self._compressed:
                break
        self._num_bytes += len(part)
        if self._num_bytes > self._max_bytes:
            limit = f"the body must have at most {self._max_bytes:,} bytes once it is inflated"
            raise RejectedError(413, "request_too_large", limit)
        return part


def _unreadable(reason: str) -> RejectedError:
    return RejectedError(400, "invalid_compressed_body", reason)
