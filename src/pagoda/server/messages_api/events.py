"""The events of a streamed message.

message_start, ping, [content_block_start, content_block_delta …, content_block_stop] …,
message_delta, message_stop
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel

from pagoda.server.messages_api.message import Content, Ending, Message, MessageUsage
from pagoda.server.responses import json_of
from pagoda.server.streaming import event


class Event(BaseModel):
    """Its type is also the name of the server-sent event."""

    type: str

    def written(self) -> bytes:
        """As it is sent."""
        return event(json_of(self), self.type)


class MessageStart(Event):
    type: str = "message_start"
    message: Message


class Ping(Event):
    type: str = "ping"


class ContentBlockStart(Event):
    type: str = "content_block_start"
    index: int
    content_block: Content


class TextDelta(BaseModel):
    type: Literal["text_delta"] = "text_delta"
    text: str


class ThinkingDelta(BaseModel):
    type: Literal["thinking_delta"] = "thinking_delta"
    thinking: str


class InputJSONDelta(BaseModel):
    type: Literal["input_json_delta"] = "input_json_delta"
    partial_json: str


class ContentBlockDelta(Event):
    type: str = "content_block_delta"
    index: int
    delta: TextDelta | ThinkingDelta | InputJSONDelta


class ContentBlockStop(Event):
    type: str = "content_block_stop"
    index: int


class MessageDelta(Event):
    type: str = "message_delta"
    delta: Ending
    usage: MessageUsage


class MessageStop(Event):
    type: str = "message_stop"


def written(*events: Event) -> bytes:
    """All of them, as they are sent."""
    return b"".join(each.written() for each in events)
