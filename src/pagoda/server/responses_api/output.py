"""The items of one answer, made piece by piece."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from pagoda.server.responses import TokenLogprob
from pagoda.server.responses_api.events import Event
from pagoda.server.responses_api.open_items import OpenCall, OpenItem, OpenMessage
from pagoda.server.responses_api.output_items import ItemStatus, OutputItem
from pagoda.server.responses_api.tool_kinds import FunctionPlace
from pagoda.server.tool_calls import CallPiece, Reading, new_call_id

_NO_PLACES: Mapping[str, FunctionPlace] = MappingProxyType({})


class Output:
    """At most one item is open at a time: it ends where the next one begins."""

    def __init__(self, in_namespaces: Mapping[str, FunctionPlace] = _NO_PLACES) -> None:
        """`in_namespaces` tells by its full name where a function is that is not at the top."""
        self._in_namespaces = in_namespaces
        self.items: list[OutputItem] = []
        """The last of them may still be open, and then has no text yet."""
        self._open: OpenItem | None = None
        self._untold: list[TokenLogprob] = []
        """Tokens whose text is held back."""

    def add(self, reading: Reading, logprobs: Sequence[TokenLogprob] = ()) -> Iterator[Event]:
        """What a piece of the answer brings: the end of a call, then text, then other calls."""
        self._untold += logprobs
        pending = list(reading.calls)
        while pending and pending[0].name is None:
            yield from self._go_on_calling(pending.pop(0))
        if reading.content:
            yield from self._say(reading.content)
        for piece in pending:
            yield from self._go_on_calling(piece)

    def end(self, status: ItemStatus) -> Iterator[Event]:
        """The answer is over. An answer of nothing is a message without text."""
        if not self.items or (self._untold and isinstance(self._open, OpenMessage)):
            yield from self._say("")
        yield from self.close(status)

    def close(self, status: ItemStatus) -> Iterator[Event]:
        """Nothing more comes of the item that is open."""
        if self._open is not None:
            yield from self._open.end(status)
        self._open = None

    def _say(self, text: str) -> Iterator[Event]:
        message = self._open
        if not isinstance(message, OpenMessage):
            message = OpenMessage(len(self.items))
            yield from self._begin(message)
        logprobs, self._untold = self._untold, []
        yield from message.grow(text, logprobs)

    def _go_on_calling(self, piece: CallPiece) -> Iterator[Event]:
        call = self._open
        if piece.name is not None:
            place = self._in_namespaces.get(piece.name, FunctionPlace(None, piece.name))
            call = OpenCall(len(self.items), piece.index, new_call_id(), place)
            yield from self._begin(call)
        assert isinstance(call, OpenCall)
        assert call.call_index == piece.index
        self._untold = []  # they are no text
        yield from call.grow(piece.arguments)

    def _begin(self, item: OpenItem) -> Iterator[Event]:
        yield from self.close("completed")
        self._open = item
        self.items.append(item.item)
        yield from item.begin()
