"""A body that is larger than memory should hold: read into a file that nobody else finds."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable
from typing import BinaryIO

from fastapi import Request
from starlette.requests import ClientDisconnect

from pagoda.engine.sessions.errors import SessionFailedError
from pagoda.server.errors import ClientGoneError, RejectedError

_PART_BYTES = 2**20
"""Written at once."""
_HEAD_BYTES = 2**16
"""Written at once, until it is known how long the body is."""
_LEAST_PACE = 2**18
"""Bytes a second that a body has to come with, beyond what any may take."""

MOST_S = 3600.0
"""That a body may take, at whatever pace."""

InThread = Callable[[Callable[[], None]], Awaitable[None]]
BytesOf = Callable[[BinaryIO, int], int | None]
"""How many bytes a body has at most, of which so many have come; None where these do not tell.
Leaves the file at its end, and may raise."""


async def spooled_body(
    request: Request,
    max_bytes: int,
    timeout_s: float,
    in_thread: InThread,
    bytes_of: BytesOf,
    *,
    most_s: float = MOST_S,
) -> BinaryIO:
    """The body, for whoever closes it; it goes with its last reader.

    It may take `timeout_s` and as long as its bytes take at 256 KiB a second, but `most_s` at most.
    As soon as its first bytes have come `bytes_of` is asked, so that one that cannot be is not
    waited for. Raises `RejectedError` for one that is too large or too slow, what `bytes_of`
    raises, `ClientGoneError`, and `SessionFailedError` where there is no room for it.
    """
    announced = request.headers.get("content-length", "")
    if announced.isdigit() and int(announced) > max_bytes:
        raise _too_large(max_bytes)
    try:
        file = tempfile.TemporaryFile()  # noqa: SIM115 - the caller's
        try:
            spooling = _Spooling(file, max_bytes, timeout_s, bytes_of, most_s)
            await spooling.run(request, in_thread)
        except BaseException:
            file.close()
            raise
    except OSError as error:
        raise SessionFailedError(f"it could not be kept: {error.strerror}") from None
    return file


class _Spooling:
    def __init__(
        self,
        file: BinaryIO,
        max_bytes: int,
        timeout_s: float,
        bytes_of: BytesOf,
        most_s: float,
    ) -> None:
        self._file = file
        self._max_bytes = max_bytes
        self._timeout_s = timeout_s
        self._bytes_of = bytes_of
        self._most_s = most_s
        self._is_known = False
        """Its head has come, and said how long it is."""
        self._num_bytes = 0
        self._part = bytearray()
        """What came and is not written yet."""

    async def run(self, request: Request, in_thread: InThread) -> None:
        began = asyncio.get_running_loop().time()
        parts = request.stream()
        while True:
            allowed = self._timeout_s + self._num_bytes / _LEAST_PACE
            deadline = began + min(allowed, self._most_s)
            try:
                async with asyncio.timeout_at(deadline):
                    part = await anext(parts, None)
            except TimeoutError:
                limit = f"the body comes too slowly: after {self._timeout_s:g} seconds at least "
                limit += (
                    f"{_LEAST_PACE // 1024:,} KiB a second, and {self._most_s:g} seconds at most"
                )
                raise RejectedError(408, "request_too_slow", limit) from None
            except ClientDisconnect:
                raise ClientGoneError from None
            if part is None:
                break
            self._take(part)
            if len(self._part) >= (_PART_BYTES if self._is_known else _HEAD_BYTES):
                await in_thread(self._write)
        await in_thread(self._write)

    def _take(self, part: bytes) -> None:
        self._num_bytes += len(part)
        if self._num_bytes > self._max_bytes:
            raise _too_large(self._max_bytes)
        self._part += part

    def _write(self) -> None:
        self._file.write(self._part)
        self._part = bytearray()
        if not self._is_known:
            told = self._bytes_of(self._file, self._num_bytes)
            if told is not None:
                self._is_known, self._max_bytes = True, min(self._max_bytes, told)
            if self._num_bytes > self._max_bytes:
                raise _too_large(self._max_bytes)


def _too_large(max_bytes: int) -> RejectedError:
    limit = f"this session has at most {max_bytes:,} bytes here"
    return RejectedError(413, "request_too_large", limit)
