"""In which shape an error is told: that of the API whose route was asked.

An error is judged once, in OpenAI's words (`ErrorDetail`); a shape says the same in another API's.
"""

from __future__ import annotations

from collections.abc import Callable

from pydantic import BaseModel

from pagoda.server.messages_api.errors import messages_error
from pagoda.server.responses import ErrorDetail, ErrorResponse

ErrorShape = Callable[[int, ErrorDetail, str], BaseModel]
"""From a status, what is told and the request's id to a body."""


def _openai_error(status: int, detail: ErrorDetail, request_id: str) -> ErrorResponse:
    return ErrorResponse(error=detail)


_SHAPES: dict[str, ErrorShape] = {"/v1/messages": messages_error}
"""By the path under which an API has its routes; OpenAI's is that of all others."""


def error_shape(path: str) -> ErrorShape:
    """The shape for a request to `path`, a route or not."""
    found = (shape for root, shape in _SHAPES.items() if f"{path}/".startswith(f"{root}/"))
    return next(found, _openai_error)
