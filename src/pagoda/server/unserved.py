"""Routes that are not here: told as such, those that clients know from elsewhere with a reason."""

from __future__ import annotations

from fastapi import Request, Response

from pagoda.server.errors import error_response
from pagoda.server.responses import ErrorDetail

_ANSWERS = "/v1/completions, /v1/chat/completions, /v1/responses and /v1/messages"
_ANSWERING = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/messages",
    "/v1/models",
    "/v1/responses",
)
_BESIDE = ("/tokenize", "/detokenize", "/health", "/metrics", "/ping", "/version")
_FOR_DEVELOPERS = ("/reset_prefix_cache", "/server_info")
_NO_SCORES = "this server generates text: it gives neither vectors nor scores"
_NO_MEDIA = "this server reads and writes text alone"
_NOTHING_KEPT = f"this server keeps nothing of the kind: ask {_ANSWERS}"
_REASONS = {
    "/v1/assistants": _NOTHING_KEPT,
    "/v1/audio": _NO_MEDIA,
    "/v1/batches": f"send the requests side by side to {_ANSWERS}",
    "/v1/classify": _NO_SCORES,
    "/v1/containers": _NOTHING_KEPT,
    "/v1/conversations": "use previous_response_id, or send all items",
    "/v1/edits": f"ask {_ANSWERS}",
    "/v1/embeddings": _NO_SCORES,
    "/v1/files": _NOTHING_KEPT,
    "/v1/fine_tuning": "this server trains nothing",
    "/v1/images": _NO_MEDIA,
    "/v1/moderations": _NO_SCORES,
    "/v1/pooling": _NO_SCORES,
    "/v1/realtime": _NO_MEDIA,
    "/v1/rerank": _NO_SCORES,
    "/v1/score": _NO_SCORES,
    "/v1/threads": _NOTHING_KEPT,
    "/v1/uploads": _NOTHING_KEPT,
    "/v1/vector_stores": _NOTHING_KEPT,
    "/v1/videos": _NO_MEDIA,
}
"""By how their paths begin."""


async def not_found(request: Request, _: Exception) -> Response:
    """The response where there is no such route."""
    method, path = request.method, request.url.path
    message = f"there is no route {method} {path[:100]}: {_reason(path)}"
    return error_response(404, ErrorDetail(message=message, type="invalid_request_error"))


def _reason(path: str) -> str:
    """vLLM serves some of them without `/v1` as well."""
    versioned = path if path.startswith("/v1/") else f"/v1{path}"
    for beginning, reason in _REASONS.items():
        if f"{versioned}/".startswith(f"{beginning}/"):
            return reason
    if path.startswith("/v1/"):
        beside = path.removeprefix("/v1")
        return f"it is {beside}" if beside in _BESIDE else f"ask {_ANSWERS}"
    if versioned in _ANSWERING:
        return f"it is {versioned}: the address that clients are given ends with /v1"
    if path in _FOR_DEVELOPERS:
        return "pagoda serve --dev-mode has it"
    return "/openapi.json tells the routes"
