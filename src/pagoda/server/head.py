"""HEAD on every route that takes GET."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send


def wants_body(scope: Scope) -> bool:
    """Not so for HEAD: an answer without end ends with its headers then."""
    return not scope.get("state", {}).get("is_head", False)


class HeadAsGet:
    """Answers HEAD as GET, but for the body."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return

        async def send_head(message: Message) -> None:
            if message["type"] == "http.response.body":
                message = {**message, "body": b""}
            await send(message)

        # The same scope: what stands outside looks there for the route.
        scope["method"] = "GET"
        scope.setdefault("state", {})["is_head"] = True
        try:
            await self._app(scope, receive, send_head)
        finally:
            scope["method"] = "HEAD"
