"""Responses that were kept, for their tenant alone, within bounds."""

from __future__ import annotations

import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from pagoda.errors import InvalidRequestError
from pagoda.server.errors import UnknownPreviousError, UnknownResponseError
from pagoda.server.list_bounds import MAX_PARTS
from pagoda.server.responses_api.input_items import InputItem, Item, ItemReference, ReasoningItem
from pagoda.server.responses_api.kept_items import HeldItems, KeptItem, kept

MAX_RESPONSES = 1024
MAX_AGE_S = 24 * 3600.0
_BYTES_BESIDE = 512
"""What a response takes in main memory beside its text and its items."""


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A response that has ended, and the conversation that it goes on with."""

    id: str
    json: bytes
    """As it was sent."""
    items: tuple[KeptItem, ...]
    """All of its prompt, those of earlier responses first, then those of its answer."""
    num_asked: int
    """Items of its prompt."""
    stored_at: float
    """On the store's clock, in seconds."""

    @property
    def input(self) -> tuple[KeptItem, ...]:
        return self.items[: self.num_asked]

    @property
    def num_bytes(self) -> int:
        """In main memory, without those of its items."""
        return sys.getsizeof(self.json) + sys.getsizeof(self.items) + _BYTES_BESIDE


class Shelf:
    """One tenant's responses. The oldest go first where there is no room.

    Any thread may call it: answers are written beside the event loop.
    """

    def __init__(self, max_bytes: int, clock: Callable[[], float]) -> None:
        """`max_bytes`: in main memory."""
        self._max_bytes = max_bytes
        self._clock = clock
        self._stored: OrderedDict[str, StoredResponse] = OrderedDict()
        self._items = HeldItems()
        self._response_bytes = 0
        """Without those of items."""
        self._lock = threading.RLock()

    @property
    def num_bytes(self) -> int:
        """In main memory. Items that several responses have count once."""
        return self._response_bytes + self._items.num_bytes

    def put(
        self,
        response_id: str,
        asked: Sequence[Item | KeptItem],
        written: bytes,
        answered: Sequence[Item],
    ) -> None:
        """Keep a response that followed on what was `asked` and is `written` as JSON, if it is not
        too large. Takes long: what is new is written as well."""
        items = tuple(kept([*asked, *answered]))
        stored = StoredResponse(response_id, written, items, len(asked), self._clock())
        if stored.num_bytes + sum(item.num_bytes for item in items) > self._max_bytes:
            return
        with self._lock:
            self._stored[response_id] = stored
            self._response_bytes += stored.num_bytes
            self._items.hold(items)
            self._drop_old()

    def get(self, response_id: str) -> StoredResponse:
        """Raises `UnknownResponseError`."""
        with self._lock:
            self._drop_old()
            if response_id not in self._stored:
                raise UnknownResponseError(response_id)
            return self._stored[response_id]

    def delete(self, response_id: str) -> None:
        """Forget a response. Raises `UnknownResponseError`."""
        with self._lock:
            self.get(response_id)
            self._drop(response_id)

    def conversation(
        self, previous_response_id: str | None, said: Iterable[InputItem]
    ) -> list[Item | KeptItem]:
        """All items up to the next answer: those of the previous response, then what is said now.

        What was thought is left out where it cannot be read. Raises `InvalidRequestError` for a
        response or an item that is not stored, and for a conversation of too many items.
        """
        items: list[Item | KeptItem] = [*self._previous(previous_response_id)]
        items += [self._resolved(item) for item in said if not _is_unread(item)]
        num_parts = sum(item.num_parts for item in items)
        if num_parts > MAX_PARTS:
            limit = f"at most {MAX_PARTS:,} with those of earlier responses"
            raise InvalidRequestError("input", f"{num_parts:,} items and parts of them", limit)
        return items

    def _previous(self, response_id: str | None) -> tuple[KeptItem, ...]:
        if response_id is None:
            return ()
        try:
            return self.get(response_id).items
        except UnknownResponseError:
            raise UnknownPreviousError(response_id) from None

    def _resolved(self, item: Item | ItemReference) -> Item | KeptItem:
        if not isinstance(item, ItemReference):
            return item
        with self._lock:
            found = self._items.find(item.id)
        if found is None:
            raise InvalidRequestError("input", item.id, "no such item is stored")
        return found

    def _drop_old(self) -> None:
        oldest_allowed = self._clock() - MAX_AGE_S
        while self._stored:
            response_id, oldest = next(iter(self._stored.items()))
            fits = self.num_bytes <= self._max_bytes and len(self._stored) <= MAX_RESPONSES
            if fits and oldest.stored_at >= oldest_allowed:
                return
            self._drop(response_id)

    def _drop(self, response_id: str) -> None:
        stored = self._stored.pop(response_id)
        self._response_bytes -= stored.num_bytes
        self._items.release(stored.items)


def _is_unread(item: InputItem) -> bool:
    return isinstance(item, ReasoningItem) and not item.thought


class ResponseStore:
    """A shelf for each tenant."""

    def __init__(self, max_bytes: int, clock: Callable[[], float] = time.monotonic) -> None:
        """`max_bytes`: of each tenant; with 0 nothing is kept."""
        self._max_bytes = max_bytes
        self._clock = clock
        self._shelves: dict[str, Shelf] = {}

    def of(self, tenant: str) -> Shelf:
        if tenant not in self._shelves:
            self._shelves[tenant] = Shelf(self._max_bytes, self._clock)
        return self._shelves[tenant]
