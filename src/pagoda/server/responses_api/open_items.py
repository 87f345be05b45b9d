"""Items while the model says them. Each method gives the events of what it does."""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator, Sequence
from typing import Any, NamedTuple

from pagoda.server.json_parts import items_json, list_json, object_json
from pagoda.server.responses import json_of
from pagoda.server.responses_api.events import (
    ArgumentsDelta,
    ArgumentsDone,
    Event,
    ItemEvent,
    PartEvent,
    ReasoningDelta,
    ReasoningDone,
    TextDelta,
    TextDone,
)
from pagoda.server.responses_api.input_items import (
    FunctionCallItem,
    Item,
    MessageItem,
    ReasoningItem,
    TextPart,
)
from pagoda.server.responses_api.output_items import (
    ItemStatus,
    OutputCall,
    OutputItem,
    OutputMessage,
    OutputReasoning,
    OutputText,
    ReasoningText,
)
from pagoda.server.responses_api.tool_kinds import FunctionPlace


class EndedItem(NamedTuple):
    """An item that is what it is from now on."""

    written: bytes
    """As JSON."""
    said: Item
    """The same in a conversation that goes on from it, where log-probabilities have no place."""


class OpenItem(ABC):
    """An item that has begun and not ended, at its place among the items of the response."""

    item: OutputItem

    def __init__(self, output_index: int) -> None:
        self._output_index = output_index

    def begin(self) -> Iterator[Event]:
        yield self._event("response.output_item.added", json_of(self.item))

    def end(self, status: ItemStatus) -> Generator[Event, None, EndedItem]:
        """Tell once more and in one piece what was told in several; returns the item."""
        self.item.status = status
        ended = yield from self._ended()
        yield self._event("response.output_item.done", ended.written)
        return ended

    @abstractmethod
    def _ended(self) -> Generator[Event, None, EndedItem]:
        """Tell all that is in the item; returns it, with its status."""

    def _event(self, kind: str, written: bytes) -> Event:
        return ItemEvent(type=kind, output_index=self._output_index, item=written)

    def _part_event(self, kind: str, written: bytes) -> Event:
        return PartEvent(type=f"response.content_part.{kind}", **self._place, part=written)

    @property
    def _place(self) -> dict[str, Any]:
        return {"item_id": self.item.id, "output_index": self._output_index}


class OpenMessage(OpenItem):
    """A message, whose text grows."""

    item: OutputMessage

    def __init__(self, output_index: int) -> None:
        super().__init__(output_index)
        self.item = OutputMessage(id=f"msg_{uuid.uuid4().hex}")
        self._texts: list[str] = []
        self._logprobs: list[bytes] = []
        """As JSON, with commas between them."""

    def begin(self) -> Iterator[Event]:
        yield from super().begin()
        yield self._part_event("added", json_of(OutputText()))

    def grow(self, text: str, logprobs: Sequence[dict[str, Any]]) -> Iterator[Event]:
        """`logprobs` has the fields of a `TokenLogprob` for each token of the text."""
        self._texts.append(text)
        written = items_json(logprobs)
        if written:
            self._logprobs.append(written)
        yield TextDelta(**self._place, delta=text, logprobs=b"[%s]" % written)

    def _ended(self) -> Generator[Event, None, EndedItem]:
        text, logprobs = "".join(self._texts), list_json(self._logprobs)
        yield TextDone(**self._place, text=text, logprobs=logprobs)
        part = object_json(OutputText(text=text), logprobs=logprobs)
        yield self._part_event("done", part)
        said = MessageItem(
            id=self.item.id,
            role="assistant",
            content=[TextPart(type="output_text", text=text)],
            status=self.item.status,
        )
        return EndedItem(object_json(self.item, content=list_json([part])), said)


class OpenReasoning(OpenItem):
    """A thought, which grows."""

    item: OutputReasoning

    def __init__(self, output_index: int) -> None:
        super().__init__(output_index)
        self.item = OutputReasoning(id=f"rs_{uuid.uuid4().hex}")
        self._texts: list[str] = []

    def begin(self) -> Iterator[Event]:
        yield from super().begin()
        yield self._part_event("added", json_of(ReasoningText()))

    def grow(self, text: str) -> Iterator[Event]:
        self._texts.append(text)
        yield ReasoningDelta(**self._place, delta=text)

    def _ended(self) -> Generator[Event, None, EndedItem]:
        part = ReasoningText(text="".join(self._texts))
        yield ReasoningDone(**self._place, text=part.text)
        yield self._part_event("done", json_of(part))
        self.item.content = [part]
        return EndedItem(json_of(self.item), ReasoningItem(**self.item.model_dump()))


class OpenCall(OpenItem):
    """A call of a function, whose arguments grow."""

    item: OutputCall

    def __init__(
        self, output_index: int, call_index: int, call_id: str, place: FunctionPlace
    ) -> None:
        super().__init__(output_index)
        self.call_index = call_index
        self.item = OutputCall(
            id=f"fc_{uuid.uuid4().hex}",
            call_id=call_id,
            name=place.name,
            namespace=place.namespace,
        )
        self._arguments: list[str] = []

    def grow(self, arguments: str) -> Iterator[Event]:
        if arguments:
            self._arguments.append(arguments)
            yield ArgumentsDelta(**self._place, delta=arguments)

    def _ended(self) -> Generator[Event, None, EndedItem]:
        self.item.arguments = "".join(self._arguments)
        yield ArgumentsDone(**self._place, name=self.item.name, arguments=self.item.arguments)
        return EndedItem(json_of(self.item), FunctionCallItem(**self.item.model_dump()))
