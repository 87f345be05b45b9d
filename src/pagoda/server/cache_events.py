"""`/cache/events`: the cache as it changes, as server-sent events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from fastapi import APIRouter, Request
from fastapi.responses import StreamingResponse
from pydantic import BaseModel
from starlette.types import Receive, Scope, Send

from pagoda.server.cache_lookout import CacheLookout
from pagoda.server.door import holder_of
from pagoda.server.errors import detail_of
from pagoda.server.head import wants_body
from pagoda.server.responses import ErrorResponse
from pagoda.server.streaming import event

LONGEST_S = 600.0
"""Then a viewer asks again, if it is still there."""
_STILL_HERE = b": nothing new\n\n"


class Opening(BaseModel):
    """The first event."""

    has_curve: bool
    """The viewer may ask what other sizes would find, which is about all tenants."""


class CacheEvents(StreamingResponse):
    """What a viewer is told, from when it is sent to when the viewer goes.

    Its place is taken when sending begins, so a refusal still has its own status.
    """

    media_type = "text/event-stream"

    def __init__(self, lookout: CacheLookout, request: Request) -> None:
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        super().__init__(self._events(), headers=headers)
        self._lookout = lookout
        self._holder = holder_of(request.scope)
        self._has_body = wants_body(request.scope)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._lookout.place(self._holder):
            await super().__call__(scope, receive, send)

    async def _events(self) -> AsyncGenerator[bytes, None]:
        if not self._has_body:
            return
        yield event(Opening(has_curve=self._holder.is_operator).model_dump_json().encode())
        ends_at = asyncio.get_running_loop().time() + LONGEST_S
        try:
            async with aclosing(self._lookout.news(self._holder)) as news:
                async for told in news:
                    yield event(told) if told else _STILL_HERE
                    if asyncio.get_running_loop().time() >= ends_at:
                        return
        except Exception as error:
            yield event(ErrorResponse(error=detail_of(error)).model_dump_json().encode())


def cache_event_routes(lookout: CacheLookout) -> APIRouter:
    """The route for the page at `/cache`; the API's schema does without it."""
    router = APIRouter(include_in_schema=False)

    @router.get("/cache/events")
    async def events(request: Request) -> CacheEvents:
        return CacheEvents(lookout, request)

    return router
