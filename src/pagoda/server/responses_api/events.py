"""The events of a response that is sent while it is made. Each tells its place in their row."""

from __future__ import annotations

from pydantic import BaseModel

from pagoda.server.responses import TokenLogprob
from pagoda.server.responses_api.output_items import OutputItem, OutputText
from pagoda.server.responses_api.response import ResponseObject


class Event(BaseModel):
    """Something that happened."""

    type: str
    sequence_number: int = 0


class ResponseEvent(Event):
    """The response has begun, or ended."""

    response: ResponseObject


class ItemEvent(Event):
    """An item has begun, or ended."""

    output_index: int
    item: OutputItem


class _InItem(Event):
    item_id: str
    output_index: int


class _InPart(_InItem):
    content_index: int = 0


class PartEvent(_InPart):
    """The part of a message has begun, or ended."""

    part: OutputText


class TextDelta(_InPart):
    """The text goes on."""

    type: str = "response.output_text.delta"
    delta: str
    logprobs: list[TokenLogprob]


class TextDone(_InPart):
    """All of the text."""

    type: str = "response.output_text.done"
    text: str
    logprobs: list[TokenLogprob]


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
