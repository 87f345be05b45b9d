"""Routes whose bodies are read beside the event loop."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

from fastapi import Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails, from_json

from pagoda.engine.tenant_threads import TenantThreads
from pagoda.server.door import tenant_of
from pagoda.server.errors import WrongBodyError

_SHORT_BYTES = 16 * 2**10
"""Read at once: that takes less than to ask a thread."""
_MOST_PROBLEMS = 8
_EXPLAINED_BYTES = 2**20
"""Of a body that may be read once more, to say better what is wrong with it."""


Result = TypeVar("Result")


class BodyRoute(APIRoute):
    """A route whose body is parsed and checked in a thread, where it is long."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        if self.body_field is None:
            return handle
        kind: Any = self.body_field.field_info.annotation

        async def handle_body(request: Request) -> Response:
            return await handle(_BodyRequest(request, kind))

        return handle_body


class _BodyRequest(Request):
    """A request whose JSON is a checked body already."""

    def __init__(self, request: Request, kind: type[BaseModel]) -> None:
        super().__init__(request.scope, request.receive)
        self._kind = kind

    async def json(self) -> BaseModel:
        """Raises `WrongBodyError`, and `json.JSONDecodeError` for what is no JSON."""
        content = await self.body()
        return await beside_loop(self, partial(checked, self._kind, content))


async def beside_loop(request: Request, work: Callable[[], Result]) -> Result:
    """What `work` returns, which looks at the request's body: in a thread where that is long, when
    it is the tenant's turn."""
    if len(await request.body()) <= _SHORT_BYTES:
        return work()
    threads: TenantThreads = request.app.state.body_threads
    return await threads.run(tenant_of(request.scope), work)


def checked(kind: type[BaseModel], content: bytes) -> BaseModel:
    """The body that some JSON stands for.

    Raises `WrongBodyError`, and `json.JSONDecodeError` for what is no JSON.
    """
    parsed = _parsed(content)
    try:
        return kind.model_validate(parsed)
    except ValidationError as error:
        raise WrongBodyError(first_problems(error), parsed) from None


def first_problems(error: ValidationError) -> list[ErrorDetails]:
    """As many as a value of several types may have: one field is told of."""
    return error.errors(include_url=False)[:_MOST_PROBLEMS]


def _parsed(content: bytes) -> Any:
    """Raises `json.JSONDecodeError`, with the place where a text stops being JSON in UTF-8.

    The fast parser refuses half of a surrogate pair (`"\\ud800"`) like any broken text. A body that
    is not very long is read once more, by a parser that takes it, so that its field is refused.
    """
    try:
        return from_json(content, cache_strings="none")
    except ValueError as error:
        invalid = json.JSONDecodeError(str(error), "", 0)
    if len(content) > _EXPLAINED_BYTES:
        raise invalid
    try:
        return json.loads(content.decode("utf-8-sig"))
    except (ValueError, RecursionError):
        raise invalid from None
