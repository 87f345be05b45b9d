"""The events of a response that is sent while it is made. Each tells its place in their row.

Fields of type `bytes` are JSON already: what several events repeat is written once.
"""

from __future__ import annotations

from pydantic import BaseModel

from pagoda.server.json_parts import object_json


class Event(BaseModel):
    """Something that happened."""

    type: str
    sequence_number: int = 0

    def written(self) -> bytes:
        """As JSON."""
        ready = {name: value for name, value in self if isinstance(value, bytes)}
        return object_json(self, **ready)


class ResponseEvent(Event):
    """The response has begun, or ended."""

    response: bytes
    """A `ResponseObject`."""


class ItemEvent(Event):
    """An item has begun, or ended."""

    output_index: int
    item: bytes
    """An `OutputItem`."""


class _InItem(Event):
    item_id: str
    output_index: int


class _InPart(_InItem):
    content_index: int = 0


class PartEvent(_InPart):
    """The part of a message or a thought has begun, or ended."""

    part: bytes
    """An `OutputText` or a `ReasoningText`."""


class TextDelta(_InPart):
    """The text goes on."""

    type: str = "response.output_text.delta"
    delta: str
    logprobs: bytes
    """A list of `TokenLogprob`."""


class TextDone(_InPart):
    """All of the text."""

    type: str = "response.output_text.done"
    text: str
    logprobs: bytes
    """A list of `TokenLogprob`."""


class ReasoningDelta(_InPart):
    """The thought goes on."""

    type: str = "response.reasoning_text.delta"
    delta: str


class ReasoningDone(_InPart):
    """All of the thought."""

    type: str = "response.reasoning_text.done"
    text: str


class ArgumentsDelta(_InItem):
    """The arguments of a call go on."""

    type: str = "response.function_call_arguments.delta"
    delta: str


class ArgumentsDone(_InItem):
    """All arguments of a call."""

    type: str = "response.function_call_arguments.done"
    name: str
    arguments: str


class ErrorEvent(Event):
    """What went wrong, in what all of OpenAI's APIs tell about it."""

    type: str = "error"
    code: str | None
    message: str
    param: str | None
