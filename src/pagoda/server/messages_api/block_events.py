"""The events of a streamed message's content: which block is open, and what it goes on with."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from pagoda.server.messages_api.events import (
    ContentBlockDelta,
    ContentBlockStart,
    ContentBlockStop,
    InputJSONDelta,
    TextDelta,
    ThinkingDelta,
)
from pagoda.server.messages_api.message import (
    Content,
    TextContent,
    ThinkingContent,
    ToolUseContent,
)
from pagoda.server.reading import CallPiece, Reading, ThoughtPiece
from pagoda.server.streaming import event
from pagoda.server.text_chunk import TextChunk
from pagoda.server.tool_calls import new_call_id


class BlockEvents:
    """Thoughts, text and calls in the order in which they come, each in a block of its own."""

    def __init__(self) -> None:
        self._num_begun = 0
        self._text: TextChunk | None = None
        """Writes the deltas of the open block, if that is of text or thought."""
        self._is_thought = False
        """It is of thought."""
        self._has_input: bool | None = None
        """The open block's arguments are an object; None while nothing is there of them."""

    def news(self, reading: Reading) -> bytes:
        """What a piece of the answer brings."""
        return b"".join(self._news(reading))

    def end(self) -> bytes:
        """The last block is closed."""
        if not self._num_begun:
            return b""
        return ContentBlockStop(index=self._num_begun - 1).written()

    def _news(self, reading: Reading) -> Iterator[bytes]:
        for piece in reading.pieces:
            if isinstance(piece, CallPiece):
                yield from self._call(piece)
            else:
                yield from self._say(piece.text, isinstance(piece, ThoughtPiece))

    def _say(self, text: str, is_thought: bool) -> Iterator[bytes]:
        if self._text is None or is_thought != self._is_thought:
            yield self._begun(ThinkingContent(thinking="") if is_thought else TextContent(text=""))
            delta = _thinking_delta if is_thought else _text_delta
            self._text = TextChunk(partial(delta, self._num_begun - 1))
            self._is_thought = is_thought
        yield event(self._text.saying(text), _DELTA)

    def _call(self, piece: CallPiece) -> Iterator[bytes]:
        if piece.name is not None:
            yield self._begun(ToolUseContent(id=new_call_id(), name=piece.name, input={}))
        arguments = piece.arguments
        if self._has_input is None and arguments.strip():
            # What is no object cannot be an input, which then stays empty.
            self._has_input = arguments.lstrip().startswith("{")
        if self._has_input:
            delta = InputJSONDelta(partial_json=arguments)
            yield ContentBlockDelta(index=self._num_begun - 1, delta=delta).written()

    def _begun(self, block: Content) -> bytes:
        """The block before is closed."""
        closed = self.end()
        index, self._num_begun = self._num_begun, self._num_begun + 1
        self._text, self._has_input = None, None
        return closed + ContentBlockStart(index=index, content_block=block).written()


_DELTA = "content_block_delta"


def _thinking_delta(index: int, text: str) -> ContentBlockDelta:
    return ContentBlockDelta(index=index, delta=ThinkingDelta(thinking=text))


def _text_delta(index: int, text: str) -> ContentBlockDelta:
    return ContentBlockDelta(index=index, delta=TextDelta(text=text))
