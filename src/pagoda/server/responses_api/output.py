"""The items of one answer, made piece by piece."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

from pagoda.server.reading import CallPiece, Reading, ThoughtPiece
from pagoda.server.responses_api.events import Event
from pagoda.server.responses_api.open_items import (
    EndedItem,
    OpenCall,
    OpenItem,
    OpenMessage,
    OpenReasoning,
)
from pagoda.server.responses_api.output_items import ItemStatus
from pagoda.server.responses_api.tokens_of_text import Logprob, TokensOfText
from pagoda.server.responses_api.tool_kinds import FunctionPlace
from pagoda.server.tool_calls import new_call_id

_NO_PLACES: Mapping[str, FunctionPlace] = MappingProxyType({})


class Output:
    """At most one item is open at a time: it ends where the next one begins."""

    def __init__(self, in_namespaces: Mapping[str, FunctionPlace] = _NO_PLACES) -> None:
        """`in_namespaces` tells by its full name where a function is that is not at the top."""
        self._in_namespaces = in_namespaces
        self.ended: list[EndedItem] = []
        self._open: OpenItem | None = None
        self._tokens = TokensOfText()

    def add_tokens(self, places: Iterable[int], logprobs: Iterable[Logprob]) -> None:
        """The tokens of what is added next, with where they begin in the answer."""
        self._tokens.add(places, logprobs)

    def add(self, reading: Reading) -> Iterator[Event]:
        """What a piece of the answer brings."""
        for piece in reading.pieces:
            if isinstance(piece, CallPiece):
                yield from self._go_on_calling(piece)
            elif isinstance(piece, ThoughtPiece):
                yield from self._think(piece.text)
            else:
                yield from self._say(piece.text, self._tokens.in_text(piece))

    def end(self, status: ItemStatus, num_characters: int) -> Iterator[Event]:
        """An answer of so many characters is over. One of nothing is a message without text."""
        logprobs = self._tokens.behind_text(num_characters)
        is_empty = self._open is None and not self.ended
        if is_empty or (logprobs and isinstance(self._open, OpenMessage)):
            yield from self._say("", logprobs)
        yield from self.close(status)

    def close(self, status: ItemStatus) -> Iterator[Event]:
        """Nothing more comes of the item that is open."""
        if self._open is not None:
            self.ended.append((yield from self._open.end(status)))
        self._open = None

    def _say(self, text: str, logprobs: Sequence[Logprob]) -> Iterator[Event]:
        message = self._open
        if not isinstance(message, OpenMessage):
            yield from self.close("completed")
            message = self._open = OpenMessage(len(self.ended))
            yield from message.begin()
        yield from message.grow(text, logprobs)

    def _think(self, text: str) -> Iterator[Event]:
        thought = self._open
        if not isinstance(thought, OpenReasoning):
            yield from self.close("completed")
            thought = self._open = OpenReasoning(len(self.ended))
            yield from thought.begin()
        yield from thought.grow(text)

    def _go_on_calling(self, piece: CallPiece) -> Iterator[Event]:
        call = self._open
        if piece.name is not None:
            yield from self.close("completed")
            place = self._in_namespaces.get(piece.name, FunctionPlace(None, piece.name))
            call = self._open = OpenCall(len(self.ended), piece.index, new_call_id(), place)
            yield from call.begin()
        assert isinstance(call, OpenCall)
        assert call.call_index == piece.index
        yield from call.grow(piece.arguments)
