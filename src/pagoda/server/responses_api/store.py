"""Responses that were kept, for their tenant alone, within bounds."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from pagoda.errors import InvalidRequestError
from pagoda.server.errors import UnknownResponseError
from pagoda.server.responses import json_of
from pagoda.server.responses_api.input_items import (
    FunctionCallItem,
    InputItem,
    Item,
    ItemReference,
    MessageItem,
    with_id,
)
from pagoda.server.responses_api.output_items import OutputItem, OutputMessage
from pagoda.server.responses_api.response import ResponseObject

MAX_RESPONSES = 1024
MAX_AGE_S = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A response that has ended, and the conversation that it goes on with."""

    response: ResponseObject
    input: tuple[Item, ...]
    """All items of its prompt, those of earlier responses first."""
    output: tuple[Item, ...]
    num_bytes: int
    stored_at: float
    """On the store's clock, in seconds."""

    @property
    def items(self) -> tuple[Item, ...]:
        return (*self.input, *self.output)


class Shelf:
    """One tenant's responses. The oldest go first where there is no room.

    Any thread may call it: answers are written beside the event loop.
    """

    def __init__(self, max_bytes: int, clock: Callable[[], float]) -> None:
        self._max_bytes = max_bytes
        self._clock = clock
        self._stored: OrderedDict[str, StoredResponse] = OrderedDict()
        self._items: dict[str, tuple[str, Item]] = {}
        """By id: the item, and the last response that it is part of."""
        self._num_bytes = 0
        self._lock = threading.RLock()

    def put(self, response: ResponseObject, asked: Iterable[Item]) -> None:
        """Keep a response that followed on what was `asked`, if it is not too large."""
        output = tuple(_as_asked(item) for item in response.output)
        given = tuple(map(with_id, asked))
        num_bytes = sum(len(json_of(each)) for each in (response, *given, *output))
        if num_bytes > self._max_bytes:
            return
        stored = StoredResponse(response, given, output, num_bytes, self._clock())
        with self._lock:
            self._drop_old(max_bytes=self._max_bytes - num_bytes, max_responses=MAX_RESPONSES - 1)
            self._stored[response.id] = stored
            self._num_bytes += num_bytes
            self._items |= {str(item.id): (response.id, item) for item in stored.items}

    def get(self, response_id: str) -> StoredResponse:
        """Raises `UnknownResponseError`."""
        with self._lock:
            self._drop_old(max_bytes=self._max_bytes, max_responses=MAX_RESPONSES)
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
    ) -> list[Item]:
        """All items up to the next answer: those of the previous response, then what is said now.

        Raises `InvalidRequestError` for a response or an item that is not stored.
        """
        items: list[Item] = []
        if previous_response_id is not None:
            try:
                items += self.get(previous_response_id).items
            except UnknownResponseError:
                limit = "no such response is stored"
                field = "previous_response_id"
                raise InvalidRequestError(field, previous_response_id, limit) from None
        return items + [self._resolved(item) for item in said]

    def _resolved(self, item: InputItem) -> Item:
        if not isinstance(item, ItemReference):
            return item
        with self._lock:
            found = self._items.get(item.id)
        if found is None:
            raise InvalidRequestError("input", item.id, "no such item is stored")
        return found[1]

    def _drop_old(self, *, max_bytes: int, max_responses: int) -> None:
        oldest_allowed = self._clock() - MAX_AGE_S
        while self._stored:
            response_id, oldest = next(iter(self._stored.items()))
            fits = self._num_bytes <= max_bytes and len(self._stored) <= max_responses
            if fits and oldest.stored_at >= oldest_allowed:
                return
            self._drop(response_id)

    def _drop(self, response_id: str) -> None:
        stored = self._stored.pop(response_id)
        self._num_bytes -= stored.num_bytes
        for item in stored.items:
            key = str(item.id)
            if key in self._items and self._items[key][0] == response_id:
                del self._items[key]


class ResponseStore:
    """A shelf for each tenant."""

    def __init__(self, max_bytes: int, clock: Callable[[], float] = time.monotonic) -> None:
        """`max_bytes`: of each tenant; with 0 nothing is kept."""
        self._max_bytes = max_bytes
        self._clock = clock
        self._shelves: dict[str, Shelf] = {}

    def of(self, tenant: str) -> Shelf:
        return self._shelves.setdefault(tenant, Shelf(self._max_bytes, self._clock))


def _as_asked(item: OutputItem) -> Item:
    """An item of an answer as an item of the conversation that goes on from it."""
    kind = MessageItem if isinstance(item, OutputMessage) else FunctionCallItem
    return kind.model_validate(item.model_dump())
