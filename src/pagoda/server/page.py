"""The page at `/`: chat with the model, and see beside each answer what came from the cache."""

from __future__ import annotations

import hashlib
from pathlib import Path

from fastapi import APIRouter, Request, Response
from starlette.exceptions import HTTPException

FOLDER = Path(__file__).parent / "page_files"
_INDEX = "index.html"
_MEDIA_TYPES = {
    ".css": "text/css",
    ".html": "text/html",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}
_POLICY = "; ".join(
    (
        "default-src 'none'",
        "connect-src 'self'",
        "img-src 'self'",
        "script-src 'self'",
        "style-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
    )
)
"""Nothing loads but the page's own files, and no text becomes HTML."""


class PageFile:
    """One file of a page, held in memory."""

    def __init__(self, content: bytes, media_type: str, policy: str = _POLICY) -> None:
        self._content = content
        self._headers = {
            "Cache-Control": "private, no-cache",
            "Content-Security-Policy": policy,
            "Content-Type": f"{media_type}; charset=utf-8",
            "ETag": f'"{hashlib.sha256(content).hexdigest()[:32]}"',
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
        }

    def answer(self, request: Request) -> Response:
        """The file, or 304 for a client that has it."""
        if self._is_held_by(request):
            return Response(status_code=304, headers=self._headers)
        return Response(self._content, headers=self._headers)

    def _is_held_by(self, request: Request) -> bool:
        tags = request.headers.get("If-None-Match", "").split(",")
        held = {tag.strip().removeprefix("W/") for tag in tags}
        return bool(held & {"*", self._headers["ETag"]})


def page_files(folder: Path) -> dict[str, PageFile]:
    """The files of a page, by name."""
    return {
        path.name: PageFile(path.read_bytes(), _MEDIA_TYPES[path.suffix])
        for path in folder.iterdir()
        if path.suffix in _MEDIA_TYPES
    }


def page_routes(folder: Path = FOLDER, at: str = "/", files_at: str = "/page") -> APIRouter:
    """Routes for people: a page and its files. The API's schema does without them."""
    router = APIRouter(include_in_schema=False)
    files = page_files(folder)

    @router.get(at)
    async def page(request: Request) -> Response:
        return files[_INDEX].answer(request)

    @router.get(files_at + "/{name}")
    async def page_file(request: Request, name: str) -> Response:
        if name not in files:
            raise HTTPException(404)
        return files[name].answer(request)

    return router
