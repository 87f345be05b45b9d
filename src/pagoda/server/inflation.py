"""Compressed bodies, inflated as they are read."""

from __future__ import annotations

import math
import zlib

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pagoda.server.door import STREAMED
from pagoda.server.errors import RejectedError, rejection
from pagoda.server.turns import Turns

ENCODINGS = ("gzip", "deflate")
_ALIASES = {"x-gzip"}
_PART_BYTES = 64 * 2**10
"""What is made in one turn of the event loop, at most."""
_COMPRESSED_BYTES = 16 * 2**10
"""What is read in one turn at most: there are bytes that take long and become nothing."""
_MAX_MEMBERS = 128
"""Compressed texts in a row: programs that compress in threads make one for some 64 KiB."""
_ANY_HEADER = zlib.MAX_WBITS + 32
"""zlib finds out whether it is gzip's or its own."""


class Inflation:
    """Hands bodies on as they were before a client compressed them, at most `max_bytes` of them.

    A small body that would inflate to a large one takes `max_bytes` of memory and is told 413. It
    is inflated in `turns`. Routes that read their bodies part by part have a bound of their own.
    """

    def __init__(self, app: ASGIApp, max_bytes: int, turns: Turns) -> None:
        self._app = app
        self._max_bytes = max_bytes
        self._turns = turns

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
            max_bytes = math.inf if scope["path"] in STREAMED else self._max_bytes
            body = _InflatedBody(receive, max_bytes, self._turns)
            await self._app(scope, body.receive, send)
        else:
            limit = f"Content-Encoding must be one of {', '.join(ENCODINGS)}"
            unknown = rejection(RejectedError(415, "unsupported_content_encoding", limit))
            unknown.headers["Accept-Encoding"] = ", ".join(ENCODINGS)
            await unknown(scope, receive, send)


class _InflatedBody:
    """One body, read in parts."""

    def __init__(self, receive: Receive, max_bytes: float, turns: Turns) -> None:
        self._receive = receive
        self._max_bytes = max_bytes
        self._turns = turns
        self._num_bytes = 0
        self._inflater = zlib.decompressobj(_ANY_HEADER)
        self._num_members = 1
        self._compressed = memoryview(b"")
        """What came and is not inflated yet."""
        self._has_more = True
        self._is_complete = False

    async def receive(self) -> Message:
        """The next part of the body, and after the last one whatever else is received.

        Raises `RejectedError` where there is too much, and for what cannot be read.
        """
        if self._is_complete:
            return await self._receive()
        try:
            return await self._next_message()
        except RejectedError:
            while self._has_more:  # or the client would not hear of it
                self._has_more = (await self._receive()).get("more_body", False)
            raise

    async def _next_message(self) -> Message:
        while not (part := await self._next_part()) and (self._compressed or self._has_more):
            if not self._compressed:
                message = await self._receive()
                if message["type"] != "http.request":
                    return message
                self._compressed = memoryview(message.get("body", b""))
                self._has_more = message.get("more_body", False)
        self._is_complete = not part
        if self._is_complete and not self._inflater.eof:
            raise _unreadable("the compressed body ends too early")
        return {"type": "http.request", "body": part, "more_body": not self._is_complete}

    async def _next_part(self) -> bytes:
        """Some bytes more; none where more must be read first."""
        async with self._turns.next():
            part = self._inflate()
        self._num_bytes += len(part)
        if self._num_bytes > self._max_bytes:
            limit = f"the body must have at most {self._max_bytes:,} bytes once it is inflated"
            raise RejectedError(413, "request_too_large", limit)
        return part

    def _inflate(self) -> bytes:
        """What some of the compressed bytes become, and what is left of those before."""
        if self._inflater.eof and self._compressed:
            self._begin_member()
        read = self._compressed[:_COMPRESSED_BYTES]
        try:
            part = self._inflater.decompress(read, _PART_BYTES)
        except zlib.error:
            raise _unreadable("the body is neither gzip nor deflate") from None
        num_left = len(self._inflater.unconsumed_tail or self._inflater.unused_data)
        self._compressed = self._compressed[len(read) - num_left :]
        return part

    def _begin_member(self) -> None:
        """gzip may have several in a row."""
        self._num_members += 1
        if self._num_members > _MAX_MEMBERS:
            raise _unreadable(f"the body must have at most {_MAX_MEMBERS} gzip members")
        self._inflater = zlib.decompressobj(_ANY_HEADER)


def _unreadable(reason: str) -> RejectedError:
    return RejectedError(400, "invalid_compressed_body", reason)
