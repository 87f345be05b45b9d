"""Items while the model says them. Each method gives the events of what it does."""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

from pagoda.server.responses import TokenLogprob
from pagoda.server.responses_api.events import (
    ArgumentsDelta,
    ArgumentsDone,
    Event,
    ItemEvent,
    PartEvent,
    TextDelta,
    TextDone,
)
from pagoda.server.responses_api.output_items import (
    ItemStatus,
    OutputCall,
    OutputItem,
    OutputMessage,
    OutputText,
)
from pagoda.server.responses_api.tool_kinds import FunctionPlace


class OpenItem(ABC):
    """An item that has begun and not ended, at its place among the items of the response."""

    item: OutputItem

    def __init__(self, output_index: int) -> None:
        self._output_index = output_index

    def begin(self) -> Iterator[Event]:
        yield self._event("response.output_item.added")

    def end(self, status: ItemStatus) -> Iterator[Event]:
        """The item is what it is from now on."""
        yield from self._all_of_it()
        self.item.status = status
        yield self._event("response.output_item.done")

    @abstractmethod
    def _all_of_it(self) -> Iterator[Event]:
        """Tell once more and in one piece what was told in several."""

    def _event(self, kind: str) -> Event:
        return ItemEvent(type=kind, output_index=self._output_index, item=self.item)

    @property
    def _place(self) -> dict[str, Any]:
        return {"item_id": self.item.id, "output_index": self._output_index}


class OpenMessage(OpenItem):
    """A message, whose text grows."""

    item: OutputMessage

    def __init__(self, output_index: int) -> None:
        super().__init__(output_index)
        self.item = OutputMessage(id=f"msg_{uuid.uuid4().hex}")
        self._part = OutputText()
        self._texts: list[str] = []

    def begin(self) -> Iterator[Event]:
        yield from super().begin()
        self.item.content = [self._part]
        yield self._part_event("response.content_part.added")

    def grow(self, text: str, logprobs: Sequence[TokenLogprob]) -> Iterator[Event]:
        self._texts.append(text)
        self._part.logprobs += logprobs
        yield TextDelta(**self._place, delta=text, logprobs=list(logprobs))

    def _all_of_it(self) -> Iterator[Event]:
        self._part.text = "".join(self._texts)
        yield TextDone(**self._place, text=self._part.text, logprobs=self._part.logprobs)
        yield self._part_event("response.content_part.done")

    def _part_event(self, kind: str) -> Event:
        return PartEvent(type=kind, **self._place, part=self._part)


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

    def _all_of_it(self) -> Iterator[Event]:
        self.item.arguments = "".join(self._arguments)
        yield ArgumentsDone(**self._place, name=self.item.name, arguments=self.item.arguments)
