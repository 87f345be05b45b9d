"""Items of conversations that are kept: as JSON, each of them once, whichever responses hold it."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass

from pydantic import TypeAdapter

from pagoda.server.responses import json_of
from pagoda.server.responses_api.input_items import Item, MessageItem, new_item_id

_ITEM: TypeAdapter[Item] = TypeAdapter(Item)
_BYTES_BESIDE = 512
"""What an item takes in main memory beside its text: the objects, and its places in two tables."""


@dataclass(frozen=True, slots=True, eq=False)
class KeptItem:
    """An item, as a list of items tells it; as objects it would take several times the memory."""

    id: str
    json: bytes
    num_parts: int
    """See `MessageItem.num_parts`."""
    num_bytes: int
    """In main memory."""

    @classmethod
    def of(cls, item: Item, item_id: str) -> KeptItem:
        told = item.in_parts() if isinstance(item, MessageItem) else item
        told = told.model_copy(update={"id": item_id, "status": item.status or "completed"})
        written = json_of(told, exclude_none=True)
        num_bytes = sys.getsizeof(written) + sys.getsizeof(item_id) + _BYTES_BESIDE
        return cls(item_id, written, item.num_parts, num_bytes)

    def item(self) -> Item:
        return _ITEM.validate_json(self.json)


def said_in(items: Iterable[Item | KeptItem]) -> Iterable[Item]:
    """What the items say."""
    return (each.item() if isinstance(each, KeptItem) else each for each in items)


def kept(items: Iterable[Item | KeptItem]) -> list[KeptItem]:
    """A conversation to be kept. None of its items has the id of another, so that each can be
    found."""
    found: dict[str, KeptItem] = {}
    for each in items:
        if isinstance(each, KeptItem) and each.id not in found:
            found[each.id] = each
            continue
        item = each.item() if isinstance(each, KeptItem) else each
        is_free = item.id and item.id not in found
        item_id = item.id if item.id and is_free else new_item_id(item)
        found[item_id] = KeptItem.of(item, item_id)
    return list(found.values())


class HeldItems:
    """The items of all responses of a shelf. For one thread at a time."""

    def __init__(self) -> None:
        self._num_holders: dict[KeptItem, int] = {}
        self._by_id: dict[str, list[KeptItem]] = {}
        """Clients may have given the same id to several; the newest comes last."""
        self.num_bytes = 0

    def hold(self, items: Iterable[KeptItem]) -> None:
        """One more response has these."""
        for item in items:
            num = self._num_holders.get(item, 0)
            if not num:
                self._by_id.setdefault(item.id, []).append(item)
                self.num_bytes += item.num_bytes
            self._num_holders[item] = num + 1

    def release(self, items: Iterable[KeptItem]) -> None:
        """One response less has these; what none has is forgotten."""
        for item in items:
            self._num_holders[item] -= 1
            if not self._num_holders[item]:
                del self._num_holders[item]
                self._by_id[item.id].remove(item)
                if not self._by_id[item.id]:
                    del self._by_id[item.id]
                self.num_bytes -= item.num_bytes

    def find(self, item_id: str) -> KeptItem | None:
        """The newest of that id."""
        return self._by_id.get(item_id, [None])[-1]
