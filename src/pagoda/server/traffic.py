"""Which HTTP requests the server has answered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from starlette.routing import BaseRoute, Route
from starlette.types import Scope

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_OTHER = "other"


class Answered(NamedTuple):
    """A kind of request and what became of it. Clients cannot make up new kinds."""

    route: str
    method: str
    status: int


class Traffic:
    """Counts answered requests. For one event loop."""

    def __init__(self) -> None:
        self.num_answered: Counter[Answered] = Counter()
        self._routes: list[Route] = []

    def know(self, routes: Iterable[BaseRoute]) -> None:
        """Tell requests to these apart, also those that are refused on their way there."""
        self._routes += [each for each in routes if isinstance(each, Route)]

    def note(self, scope: Scope, status: int) -> None:
        """A request has ended."""
        method = scope["method"] if scope["method"] in _METHODS else _OTHER
        self.num_answered[Answered(self._route_of(scope), method, status)] += 1

    def _route_of(self, scope: Scope) -> str:
        """The route's path as the application writes it."""
        if "route" in scope:
            return str(getattr(scope["route"], "path", _OTHER))
        found = (each.path for each in self._routes if each.path_regex.match(scope["path"]))
        return next(found, _OTHER)
