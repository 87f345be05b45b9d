"""Errors as HTTP tells them: the shape of the route's API, the right status, and no internals.

RefusedError, a body that cannot be read or has wrong types    400
UnknownModelError, UnknownResponseError                        404
RejectedError: no key, no place, too large, …                  its own, 401 to 503
RequestTimeoutError                                            504
ShutDownError                                                  503
an engine that has stopped or hangs, at /health                503
everything else                                                500
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

from pagoda.errors import (
    ContextLengthError,
    InvalidRequestError,
    PagodaError,
    RefusedError,
    RequestTimeoutError,
    ShutDownError,
    shorten,
)
from pagoda.server.error_shapes import error_shape
from pagoda.server.responses import ErrorDetail, ErrorResponse, json_of, refusals
from pagoda.server.tally import tally_of

if TYPE_CHECKING:
    from pagoda.engine.step_watch import HungStep

logger = logging.getLogger(__name__)

_REFUSED = "invalid_request_error"
_MAX_PHRASES = 4
_RETRY_AFTER_S = 1
_PART_BYTES = 256 * 1024
"""Of an answer, sent at once."""
_CHALLENGES = ('Bearer realm="pagoda"', 'Basic realm="pagoda"')
"""A header each: Chromium reads no more than the first of those that share one."""
_TYPES = {
    400: _REFUSED,
    401: "authentication_error",
    403: "permission_error",
    408: _REFUSED,
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
}
"""Which OpenAI's clients look for."""


class RejectedError(HTTPException):
    """A request that could be right, but not now or not from this client.

    An `HTTPException`, because the web framework lets no other error pass while it reads a body.
    """

    def __init__(self, status_code: int, code: str, reason: str) -> None:
        self.code = code
        super().__init__(status_code, reason)


class WrongBodyError(HTTPException):
    """A body whose types are wrong (HTTP 400), with what `pydantic` says of it."""

    def __init__(self, problems: Sequence[Any], body: object) -> None:
        self.problems = [{**each, "loc": ("body", *each["loc"])} for each in problems]
        self.body = body
        super().__init__(400)


class ShuttingDownError(RejectedError):
    """Only what runs already is answered (HTTP 503)."""

    def __init__(self) -> None:
        super().__init__(503, "server_shutting_down", "the server is shutting down")


REFUSALS = refusals(ErrorResponse, 400, 401, 403, 404, 408, 413, 415, 429, 431, 500, 503, 504)
"""What a route that takes a body may answer instead, for the schema."""


class JSONBody(Response):
    """A response that is JSON text already.

    It is sent in parts, each when the client has read nearly all before it: a request is over, and
    its place free, when its answer is read and does not lie in the server's memory any more. One of
    several parts counts among the application's `unread_answers` meanwhile.
    """

    media_type = "application/json"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if len(self.body) <= _PART_BYTES:
            await self._send(send)
            return
        with scope["app"].state.unread_answers.held(scope, len(self.body)):
            await self._send(send)

    async def _send(self, send: Send) -> None:
        start = {"type": "http.response.start", "status": self.status_code}
        await send({**start, "headers": self.raw_headers})
        body = memoryview(self.body)
        for begin in range(0, len(body), _PART_BYTES):
            part = bytes(body[begin : begin + _PART_BYTES])
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


class ErrorBody(JSONBody):
    """An error, which the request's tally takes note of; written for the route that was asked."""

    def __init__(self, status: int, detail: ErrorDetail) -> None:
        super().__init__(status_code=status)
        self._detail = detail

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        tally = tally_of(scope)
        tally.error = self._detail.code or self._detail.type
        tally.error_param = self._detail.param
        shape = error_shape(scope["path"])
        self.body = json_of(shape(self.status_code, self._detail, tally.request_id))
        self.headers["Content-Length"] = str(len(self.body))
        await super().__call__(scope, receive, send)


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


def stopped() -> ErrorDetail:
    """What is told when no request can be answered any more."""
    return ErrorDetail(
        message="the engine has stopped; restart the server",
        type="server_error",
        code="engine_stopped",
    )


def hanging(hung: HungStep) -> ErrorDetail:
    """What is told while a step of the engine does not end."""
    return ErrorDetail(message=f"the engine hangs: {hung}", type="server_error", code="engine_hung")


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
        return ErrorDetail(message=str(error), type="server_error", code="request_timeout")
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
    async def on_unknown(request: Request, error: InvalidRequestError) -> Response:
        return error_response(404, refused(error))

    @app.exception_handler(RejectedError)
    async def on_rejected(request: Request, error: RejectedError) -> Response:
        return rejection(error)

    @app.exception_handler(RequestValidationError)
    async def on_invalid_body(request: Request, error: RequestValidationError) -> Response:
        return error_response(400, invalid_body(error.errors(), error.body))

    @app.exception_handler(WrongBodyError)
    async def on_wrong_body(request: Request, error: WrongBodyError) -> Response:
        return error_response(400, invalid_body(error.problems, error.body))

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
    async def on_shut_down(request: Request, error: ShutDownError) -> Response:
        return rejection(ShuttingDownError())

    @app.exception_handler(PagodaError)
    async def on_engine_error(request: Request, error: PagodaError) -> Response:
        return error_response(500, detail_of(error))

    @app.exception_handler(Exception)
    async def on_crash(request: Request, error: Exception) -> Response:
        # The web framework raises it again for the server's log.
        return error_response(500, failed())


def error_response(status: int, detail: ErrorDetail) -> Response:
    return ErrorBody(status, detail)


def invalid_body(problems: Sequence[Any], body: Any = None) -> ErrorDetail:
    """Tell the first field of `body` that is wrong, with what each of its accepted types needs."""
    first = problems[0]
    location = tuple(first["loc"])[1:]
    if first["type"] == "json_invalid":
        reason = first.get("ctx", {}).get("error", first["msg"])
        return ErrorDetail(message=f"the body is not valid JSON: {reason}", type=_REFUSED)
    if not location:
        message = "the body must be a JSON object, sent with Content-Type: application/json"
        return ErrorDetail(message=message, type=_REFUSED)
    field = str(location[0])
    found = [(_path(problem, body), problem) for problem in problems if problem["loc"][1] == field]
    # Of several types that a value may have, the one that went furthest is the one that was meant.
    path, told = max(found, key=lambda each: len(each[0]))
    phrases = [problem["msg"] for where, problem in found if where == path]
    wanted = " or ".join(dict.fromkeys(phrases[:_MAX_PHRASES]))
    name = field + "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in path[1:])
    given = "" if told["type"] == "missing" else f"={shorten(told['input'])}"
    return ErrorDetail(message=f"{name}{given}: {wanted}", type=_REFUSED, param=field)


def _path(problem: Any, body: Any) -> tuple[str | int, ...]:
    """Where in `body` the problem is, without the names of types that its location has as well."""
    path: list[str | int] = []
    *outer, last = problem["loc"][1:]
    for part in outer:
        if _has(body, part):
            path.append(part)
            body = body[part]
    if problem["type"] == "missing" or _has(body, last):
        path.append(last)
    return tuple(path)


def _has(container: Any, part: str | int) -> bool:
    if isinstance(container, list):
        return isinstance(part, int) and part < len(container)
    return isinstance(container, dict) and part in container
