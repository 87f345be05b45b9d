"""What the last requests found in the cache, for whoever asks afterwards."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from pagoda.errors import InvalidRequestError
from pagoda.server.explanation import PromptLookup
from pagoda.server.keys import Holder
from pagoda.server.tally import Tally

MOST_KEPT = 1024


class UnknownRequestError(InvalidRequestError):
    """No such request is remembered, or it is another tenant's, which is told alike (HTTP 404)."""

    def __init__(self, request_id: str) -> None:
        limit = f"none of your last requests; the server remembers {MOST_KEPT:,} of all tenants"
        super().__init__("request_id", request_id[:128], limit)


class RecentLookups:
    """The lookups of the last requests that have ended, by both ids of each. For one event loop."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, str], tuple[PromptLookup, ...]] = OrderedDict()
        """By tenant and id."""

    def note(self, tenant: str, tally: Tally) -> None:
        """A request has ended; one that asked nothing of the cache is not kept."""
        lookups = tuple(tally.lookups())
        for name in {tally.request_id, tally.answer_id or ""} - {""} if lookups else ():
            self._kept[tenant, name] = lookups
            self._kept.move_to_end((tenant, name))
        while len(self._kept) > 2 * MOST_KEPT:
            self._kept.popitem(last=False)

    def of(self, request_id: str, holder: Holder) -> Sequence[PromptLookup]:
        """A request's lookups, one for each prompt; an operator may ask for anybody's.

        Raises `UnknownRequestError`.
        """
        found = self._kept.get((holder.tenant, request_id))
        if found is None and holder.is_operator:
            others = (kept for (_, name), kept in self._kept.items() if name == request_id)
            found = next(others, None)
        if found is None:
            raise UnknownRequestError(request_id)
        return found
