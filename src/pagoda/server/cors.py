"""CORS: which pages of other origins may read what the server answers."""

from __future__ import annotations

from typing import Any

from pagoda.server.options import ServerOptions

_READABLE = ("x-request-id", "retry-after")
"""Headers that a page may read, beside those that every page may."""


def cors_arguments(options: ServerOptions) -> dict[str, Any]:
    """Arguments of Starlette's `CORSMiddleware`."""
    return {
        "allow_origins": options.allowed_origins,
        "allow_methods": options.allowed_methods,
        "allow_headers": options.allowed_headers,
        "allow_credentials": options.allow_credentials,
        "expose_headers": _READABLE,
    }
