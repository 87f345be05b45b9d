"""What pages of other origins may make a browser send.

A browser sends a page's request without asking the server where the request is simple enough, such
as a POST without a body, and adds a password that it knows. The page cannot read the answer, but
the work is done.
"""

from __future__ import annotations

from collections.abc import Collection
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from pagoda.server.errors import RejectedError, rejection

ANY_ORIGIN = "*"
_HARMLESS = frozenset({"GET", "HEAD", "OPTIONS"})
"""Methods that change nothing."""
_OWN_SITES = frozenset({"same-origin", "none"})
"""What `Sec-Fetch-Site` says of the server's own pages, and of what a user typed."""


class OriginCheck:
    """Refuses requests that a page of another origin made, unless the origin is an allowed one.

    Programs, which say nothing of an origin, pass.
    """

    def __init__(self, app: ASGIApp, allowed: Collection[str] = ()) -> None:
        """`allowed`: origins like "https://chat.example"; "*" stands for all."""
        self._app = app
        self._allowed = frozenset(allowed)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] not in _HARMLESS:
            headers = Headers(scope=scope)
            if not (_is_own(headers) or self._allowed & {headers.get("origin"), ANY_ORIGIN}):
                limit = "a page of another origin sent this; --allowed-origins lets it"
                foreign = RejectedError(403, "origin_not_allowed", limit)
                await rejection(foreign)(scope, receive, send)
                return
        await self._app(scope, receive, send)


def _is_own(headers: Headers) -> bool:
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if site is not None:  # a page cannot set it, and no proxy changes it
        return site in _OWN_SITES
    try:
        return origin is None or urlsplit(origin).netloc == headers.get("host")
    except ValueError:  # it is no address
        return False
