"""The page at `/cache`: the pool as a map of blocks, and what happens in it."""

from __future__ import annotations

from pathlib import Path

from fastapi import APIRouter, Request, Response
from starlette.exceptions import HTTPException

from pagoda.server.page import page_files

FOLDER = Path(__file__).parent / "cache_page_files"
_INDEX = "index.html"


def cache_page_routes() -> APIRouter:
    """Routes for people: the page and its files. The API's schema does without them."""
    router = APIRouter(include_in_schema=False)
    files = page_files(FOLDER)

    @router.get("/cache")
    async def page(request: Request) -> Response:
        return files[_INDEX].answer(request)

    @router.get("/cache/page/{name}")
    async def page_file(request: Request, name: str) -> Response:
        if name not in files:
            raise HTTPException(404)
        return files[name].answer(request)

    return router
