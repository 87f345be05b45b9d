"""Answers that are JSON."""

from __future__ import annotations

from fastapi import Response
from starlette.types import Receive, Scope, Send

from pagoda.server.body_sender import BodySender


class JSONBody(Response):
    """A response that is JSON text already, of any size.

    Raises `RejectedError` in place of a large one where too many of them are not read yet.
    """

    media_type = "application/json"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        start = {"type": "http.response.start", "status": self.status_code}
        sender = BodySender(scope, send, {**start, "headers": self.raw_headers})
        await sender.send(bytes(self.body))
        await sender.end()
