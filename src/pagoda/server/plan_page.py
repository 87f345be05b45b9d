"""The page at `/plan`: what fits on which machine, computed in the browser."""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache

from anyio import to_thread
from fastapi import APIRouter, Request, Response

from pagoda.calculator.page import plan_page

_POLICY = re.compile(r'http-equiv="Content-Security-Policy" content="([^"]*)"')


@lru_cache(maxsize=1)
def _page() -> tuple[bytes, dict[str, str]]:
    """The page and its headers: made when it is first asked for, and always the same."""
    html = plan_page()
    content = html.encode()
    found = _POLICY.search(html)
    assert found is not None  # the page has its policy inside
    return content, {
        "Cache-Control": "private, no-cache",
        "Content-Security-Policy": f"{found[1]}; frame-ancestors 'none'",
        "Content-Type": "text/html; charset=utf-8",
        "ETag": f'"{hashlib.sha256(content).hexdigest()[:32]}"',
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
    }


def plan_page_routes() -> APIRouter:
    """The route for people; the API's schema does without it."""
    router = APIRouter(include_in_schema=False)

    @router.get("/plan")
    async def page(request: Request) -> Response:
        content, headers = await to_thread.run_sync(_page)
        held = request.headers.get("If-None-Match", "")
        if headers["ETag"] in held or held == "*":
            return Response(status_code=304, headers=headers)
        return Response(content, headers=headers)

    return router
