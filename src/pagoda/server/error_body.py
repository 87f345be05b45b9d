"""Errors as they are sent."""

from __future__ import annotations

from fastapi import Response
from starlette.types import Receive, Scope, Send

from pagoda.server.error_shapes import error_shape
from pagoda.server.responses import ErrorDetail, json_of
from pagoda.server.tally import tally_of


class ErrorBody(Response):
    """An error, which the request's tally takes note of; written for the route that was asked."""

    media_type = "application/json"

    def __init__(self, status: int, detail: ErrorDetail) -> None:
        super().__init__(status_code=status)
        self._detail = detail

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        tally = tally_of(scope)
        tally.error = self._detail.code or self._detail.type
        tally.error_param = self._detail.param
        shape = error_shape(scope["path"])
        self.body = json_of(shape(self.status_code, self._detail, tally.request_id))
        self.headers["Content-Length"] = str(len(self.body))
        await super().__call__(scope, receive, send)
