"""An answer that is a file, sent part by part."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from typing import BinaryIO

from fastapi import Response
from starlette.types import Receive, Scope, Send

_PART_BYTES = 2**18


class FileAnswer(Response):
    """Sends `file` from where it stands; when that has ended, by whatever, `held` is closed."""

    media_type = "application/octet-stream"

    def __init__(self, file: BinaryIO, num_bytes: int, held: ExitStack) -> None:
        super().__init__(None)
        self.headers["content-length"] = str(num_bytes)
        self._file = file
        self._held = held

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._held:
            start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
            await send(start)
            while part := await asyncio.to_thread(self._file.read, _PART_BYTES):
                await send({"type": "http.response.body", "body": part, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
