"""The page at `/plan`: what fits on which machine, computed in the browser."""

from __future__ import annotations

import re
from functools import lru_cache

from anyio import to_thread
from fastapi import APIRouter, Request, Response

from pagoda.calculator.page import plan_page
from pagoda.server.page import PageFile

_POLICY = re.compile(r'http-equiv="Content-Security-Policy" content="([^"]*)"')


@lru_cache(maxsize=1)
def _page() -> PageFile:
    """Made when it is first asked for, and always the same."""
    html = plan_page()
    found = _POLICY.search(html)
    assert found is not None  # the page has its policy inside
    return PageFile(html.encode(), "text/html", f"{found[1]}; frame-ancestors 'none'")


def plan_page_routes() -> APIRouter:
    """The route for people; the API's schema does without it."""
    router = APIRouter(include_in_schema=False)

    @router.get("/plan")
    async def page(request: Request) -> Response:
        return (await to_thread.run_sync(_page)).answer(request)

    return router
