"""The page at `/cache`: the pool as a map of blocks, and what happens in it."""

from __future__ import annotations

from pathlib import Path

from fastapi import APIRouter

from pagoda.server.page import page_routes

FOLDER = Path(__file__).parent / "cache_page_files"


def cache_page_routes() -> APIRouter:
    """The page and its files."""
    return page_routes(FOLDER, "/cache", "/cache/page")
