"""Errors as HTTP tells them: the shape of the route's API, the right status, and no internals.

RefusedError, a body that cannot be read or has wrong types    400
UnknownModelError, UnknownResponseError, UnknownSessionError    404
RejectedError: no key, no place, too large, …                  its own, 401 to 503
RequestTimeoutError                                            504
ShutDownError, SessionFailedError                              503
ClientGoneError                                                499, for the log alone
an engine that has stopped or hangs, at /health                503
everything else                                                500
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from pagoda.engine.sessions.errors import SessionFailedError, UnknownSessionError
from pagoda.errors import (
    ContextLengthError,
    EngineError,
    InvalidRequestError,
    PagodaError,
    RefusedError,
    RequestTimeoutError,
    ShutDownError,
)
from pagoda.server.body_problems import invalid_body
from pagoda.server.error_body import ErrorBody
from pagoda.server.error_codes import SHUTTING_DOWN, TIMED_OUT
from pagoda.server.recent_lookups import UnknownRequestError
from pagoda.server.responses import ErrorDetail, ErrorResponse, refusals

logger = logging.getLogger(__name__)

_REFUSED = "invalid_request_error"
_RETRY_AFTER_S = 1
CLIENT_CLOSED_REQUEST = 499
_CHALLENGES = ('Bearer realm="pagoda"', 'Basic realm="pagoda"')
"""A header each: Chromium reads no more than the first of those that share one."""
_TYPES = {
    400: _REFUSED,
    401: "authentication_error",
    403: "permission_error",
    408: _REFUSED,
    409: _REFUSED,
    413: _REFUSED,
    415: _REFUSED,
    429: "rate_limit_error",
    431: _REFUSED,
}


class UnknownModelError(InvalidRequestError):
    """The request names a model that is not served here (HTTP 404)."""

    def __init__(self, given: str, served: Sequence[str]) -> None:
        names = " and ".join(map(repr, served))
        super().__init__("model", given, f"this server has {names}")


class UnknownResponseError(InvalidRequestError):
    """No response of that id is stored for whoever asks (HTTP 404)."""

    def __init__(self, response_id: str) -> None:
        super().__init__("response_id", response_id, "no such response is stored")


class UnknownPreviousError(InvalidRequestError):
    """No response of that id is stored to go on from."""

    def __init__(self, response_id: str) -> None:
        super().__init__("previous_response_id", response_id, "no such response is stored")


_CODES = {
    ContextLengthError: "context_length_exceeded",
    UnknownModelError: "model_not_found",
    UnknownPreviousError: "previous_response_not_found",
    UnknownSessionError: "session_not_found",
}
"""Which OpenAI's clients look for."""


class RejectedError(HTTPException):
    """A request that could be right, but not now, not from this client or not of this server.

    An `HTTPException`, because the web framework lets no other error pass while it reads a body.
    """

    def __init__(self, status_code: int, code: str, reason: str) -> None:
        self.code = code
        super().__init__(status_code, reason)


class ClientGoneError(Exception):
    """The client closed the connection before there was anything to send."""


class WrongBodyError(HTTPException):
    """A body whose types are wrong (HTTP 400), with what `pydantic` says of it."""

    def __init__(self, problems: Sequence[Any], body: object) -> None:
        self._problems = [{**each, "loc": ("body", *each["loc"])} for each in problems]
        self.body = body
        super().__init__(400)

    def errors(self) -> Sequence[Any]:
        """As those of a `RequestValidationError`."""
        return self._problems


class ShuttingDownError(RejectedError):
    """Only what runs already is answered (HTTP 503)."""

    def __init__(self) -> None:
        super().__init__(503, SHUTTING_DOWN, "the server is shutting down")


REFUSALS = refusals(ErrorResponse, 400, 401, 403, 404, 408, 413, 415, 429, 431, 500, 503, 504)
"""What a route that takes a body may answer instead, for the schema."""


def refused(error: RefusedError) -> ErrorDetail:
    """What the caller is told about input that was refused."""
    code = _CODES.get(type(error))
    return ErrorDetail(message=str(error), type=_REFUSED, param=error.field, code=code)


def failed() -> ErrorDetail:
    """What the caller is told when the fault is ours: no more than that."""
    return ErrorDetail(
        message="the engine failed while it ran this request",
        type="server_error",
        code="engine_error",
    )


def rejection(error: RejectedError) -> Response:
    """The response to a request that is not taken on."""
    response = error_response(error.status_code, rejected(error))
    if error.status_code in (429, 503):
        response.headers["Retry-After"] = str(_RETRY_AFTER_S)
    if error.status_code == 401:
        for challenge in _CHALLENGES:
            response.headers.append("WWW-Authenticate", challenge)
    if error.status_code in (408, 413, 431):
        response.headers["Connection"] = "close"  # nobody reads the rest
    return response


def client_gone() -> Response:
    """What nobody reads any more."""
    return Response(status_code=CLIENT_CLOSED_REQUEST)


def rejected(error: RejectedError) -> ErrorDetail:
    """What the caller is told about a request that is not taken on."""
    kind = _TYPES.get(error.status_code, "server_error")
    return ErrorDetail(message=error.detail, type=kind, code=error.code)


def detail_of(error: Exception) -> ErrorDetail:
    """The detail for any error; one that is not the caller's is logged."""
    if isinstance(error, RefusedError):
        return refused(error)
    if isinstance(error, RejectedError):
        return rejected(error)
    if isinstance(error, RequestTimeoutError):
        return ErrorDetail(message=str(error), type="server_error", code=TIMED_OUT)
    if isinstance(error, ShutDownError):
        return rejected(ShuttingDownError())
    logger.error("A request failed", exc_info=error)
    return failed()


def install_handlers(app: FastAPI) -> None:
    """Answer every error that leaves a route of `app`."""

    @app.exception_handler(RefusedError)
    async def on_refused(request: Request, error: RefusedError) -> Response:
        return error_response(400, refused(error))

    @app.exception_handler(UnknownModelError)
    @app.exception_handler(UnknownResponseError)
    @app.exception_handler(UnknownRequestError)
    @app.exception_handler(UnknownSessionError)
    async def on_unknown(request: Request, error: InvalidRequestError) -> Response:
        return error_response(404, refused(error))

    @app.exception_handler(RejectedError)
    async def on_rejected(request: Request, error: RejectedError) -> Response:
        return rejection(error)

    @app.exception_handler(RequestValidationError)
    @app.exception_handler(WrongBodyError)
    async def on_wrong_body(
        request: Request, error: RequestValidationError | WrongBodyError
    ) -> Response:
        return error_response(400, invalid_body(error.errors(), error.body))

    @app.exception_handler(HTTPException)
    async def on_http_error(request: Request, error: HTTPException) -> Response:
        headers = error.headers or {}
        message = str(error.detail)
        if error.status_code == 405:
            path = request.url.path[:100]
            message = f"{path} takes {headers.get('Allow', 'no')} requests, not {request.method}"
        response = error_response(error.status_code, ErrorDetail(message=message, type=_REFUSED))
        response.headers.update(headers)
        return response

    @app.exception_handler(RequestTimeoutError)
    async def on_timeout(request: Request, error: RequestTimeoutError) -> Response:
        return error_response(504, detail_of(error))

    @app.exception_handler(ShutDownError)
    @app.exception_handler(SessionFailedError)
    async def on_unable(request: Request, error: EngineError) -> Response:
        is_ending = isinstance(error, ShutDownError)
        unable = RejectedError(503, "session_failed", str(error))
        return rejection(ShuttingDownError() if is_ending else unable)

    @app.exception_handler(ClientGoneError)
    async def on_client_gone(request: Request, error: ClientGoneError) -> Response:
        return client_gone()

    @app.exception_handler(PagodaError)
    async def on_engine_error(request: Request, error: PagodaError) -> Response:
        return error_response(500, detail_of(error))

    @app.exception_handler(Exception)
    async def on_crash(request: Request, error: Exception) -> Response:
        # The web framework raises it again for the server's log.
        return error_response(500, failed())


def error_response(status: int, detail: ErrorDetail) -> Response:
    return ErrorBody(status, detail)
