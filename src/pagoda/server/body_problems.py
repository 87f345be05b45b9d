"""What pydantic finds wrong with a body, told in one sentence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pagoda.errors import shorten
from pagoda.server.problem_words import wanted
from pagoda.server.responses import ErrorDetail

_KIND = "invalid_request_error"
_MAX_PHRASES = 4
_UNICODE = "string_unicode"
"""Of a value, or of a name in an object."""


def invalid_body(problems: Sequence[Any], body: Any = None) -> ErrorDetail:
    """Tell the first field of `body` that is wrong, with what each of its accepted types needs."""
    first = problems[0]
    location = tuple(first["loc"])[1:]
    if first["type"] == "json_invalid":
        reason = first.get("ctx", {}).get("error", first["msg"])
        return ErrorDetail(message=f"the body is not valid JSON: {reason}", type=_KIND)
    if not location and first["type"] != _UNICODE:
        message = "the body must be a JSON object, sent with Content-Type: application/json"
        return ErrorDetail(message=message, type=_KIND)
    alone = [problem for problem in problems if tuple(problem["loc"])[1:2] == location[:1]]
    found = [(_path(problem, body), problem) for problem in alone]
    # Of several types that a value may have, the one that went furthest is the one that was meant.
    path, told = max(found, key=lambda each: len(each[0]))
    alike = [problem for where, problem in found if where == path]
    field = str(location[0]) if location else None
    name = (field or "") + "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in path[1:])
    if told["type"] == _UNICODE and not isinstance(_at(path, body), str):
        name = " in ".join(filter(None, ("the name of a field", name)))
    given = "" if told["type"] == "missing" else f"={shorten(told['input'])}"
    message = f"{name}{given}: {wanted(alike[:_MAX_PHRASES])}"
    return ErrorDetail(message=message, type=_KIND, param=field)


def _path(problem: Any, body: Any) -> tuple[str | int, ...]:
    """Where in `body` the problem is, without the names of types that its location has as well."""
    path: list[str | int] = []
    location = problem["loc"][1:]
    for part in location[:-1]:
        if _has(body, part):
            path.append(part)
            body = body[part]
    last = location[-1:]
    if problem["type"] == "missing" or (last and _has(body, last[0])):
        path += last
    return tuple(path)


def _at(path: Sequence[str | int], body: Any) -> Any:
    for part in path:
        body = body[part]
    return body


def _has(container: Any, part: str | int) -> bool:
    if isinstance(container, list):
        return isinstance(part, int) and part < len(container)
    return isinstance(container, dict) and part in container
