"""Which HTTP requests the server has answered."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from starlette.types import Scope

from pagoda.server.door import GATED

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

    def note(self, scope: Scope, status: int) -> None:
        """A request has ended."""
        method = scope["method"] if scope["method"] in _METHODS else _OTHER
        self.num_answered[Answered(_route_of(scope), method, status)] += 1


def _route_of(scope: Scope) -> str:
    """The route's path as the application writes it; one that has a gate, though it was not met."""
    if "route" in scope:
        return str(getattr(scope["route"], "path", _OTHER))
    return scope["path"] if scope["path"] in GATED else _OTHER
