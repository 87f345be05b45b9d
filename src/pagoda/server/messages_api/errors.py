"""Errors in the shape of Anthropic's API."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel

from pagoda.server.error_codes import SERVER_FULL, SHUTTING_DOWN, TENANT_FULL, TIMED_OUT
from pagoda.server.responses import ErrorDetail, refusals

_REFUSED = "invalid_request_error"
_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    431: "request_too_large",
    503: "overloaded_error",
    504: "timeout_error",
}
"""By status; of others the client's fault is a refusal, and the server's is `api_error`."""
_FAILURES = {TIMED_OUT: 504, SHUTTING_DOWN: 503, SERVER_FULL: 503, TENANT_FULL: 429}
"""The status that a failure in a stream would have had, by its code."""


class MessagesError(BaseModel):
    type: str
    message: str


class MessagesErrorResponse(BaseModel):
    """The body of an error, or its event."""

    type: Literal["error"] = "error"
    error: MessagesError
    request_id: str | None


MESSAGES_REFUSALS = refusals(MessagesErrorResponse, *dict.fromkeys((400, 500, *_TYPES)))
"""What the routes may answer instead, for the schema."""


def messages_error(status: int, detail: ErrorDetail, request_id: str) -> MessagesErrorResponse:
    """What OpenAI's API would tell as `detail`."""
    kind = _TYPES.get(status, _REFUSED if status < 500 else "api_error")
    error = MessagesError(type=kind, message=_message(detail))
    return MessagesErrorResponse(error=error, request_id=request_id or None)


def failure_of(detail: ErrorDetail, request_id: str) -> MessagesErrorResponse:
    """What a stream is told that has no status any more."""
    fault = 400 if detail.type == _REFUSED else 500
    return messages_error(_FAILURES.get(detail.code or "", fault), detail, request_id)


def _message(detail: ErrorDetail) -> str:
    """Agents look for these words, to make a conversation shorter."""
    if detail.code == "context_length_exceeded":
        return f"prompt is too long: {detail.message}"
    return detail.message
