"""What the engine makes, as a message or as its events."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from pagoda.server.answer import Answer
from pagoda.server.field_table import Ignored
from pagoda.server.generation import Generation, PromptOutput
from pagoda.server.messages_api.block_events import BlockEvents
from pagoda.server.messages_api.errors import failure_of
from pagoda.server.messages_api.events import (
    MessageDelta,
    MessageStart,
    MessageStop,
    Ping,
    written,
)
from pagoda.server.messages_api.message import (
    Content,
    Ending,
    Message,
    MessageUsage,
    content_of,
)
from pagoda.server.reading import Reading
from pagoda.server.responses import ErrorDetail, json_of
from pagoda.server.streaming import ChoiceCursor, event

if TYPE_CHECKING:
    from pagoda.engine.outputs import CompletionOutput, RequestOutput


class MessageAnswer(Answer):
    """Shapes the one choice of the one prompt."""

    def __init__(
        self, generation: Generation, *, tells_thoughts: bool, ignored: Sequence[Ignored] = ()
    ) -> None:
        """`ignored`: what was asked for in vain."""
        super().__init__(generation)
        generation.tally.ignored = tuple(each.field for each in ignored)
        self._warnings = [each.warning for each in ignored] or None
        self._tells_thoughts = tells_thoughts
        self._cursor = ChoiceCursor()
        self._reader = generation.tools.begin()
        self._blocks = BlockEvents()

    def whole(self, outputs: Sequence[RequestOutput]) -> bytes:
        [output] = outputs
        [choice] = output.outputs
        reading = self._read(choice)
        ending = self._ending(choice, has_calls=bool(reading.calls))
        return json_of(self._message(output, content_of(reading), ending))

    def news(self, item: PromptOutput) -> bytes:
        [choice] = item.output.outputs
        opening = b""
        if not self._cursor.is_open:
            opening = written(MessageStart(message=self._message(item.output)), Ping())
        reading = self._read(choice)
        self._cursor.advance(choice)
        self._cursor.has_calls |= bool(reading.calls)
        return opening + self._blocks.news(reading)

    def end(self, outputs: Sequence[RequestOutput]) -> Iterable[bytes]:
        [output] = outputs
        [choice] = output.outputs
        ending = self._ending(choice, has_calls=self._cursor.has_calls)
        delta = MessageDelta(delta=ending, usage=self._usage(output))
        return [self._blocks.end() + written(delta, MessageStop())]

    def failure(self, detail: ErrorDetail) -> bytes:
        return event(json_of(failure_of(detail, self._generation.tally.request_id)), "error")

    def _message(
        self,
        output: RequestOutput,
        content: Sequence[Content] = (),
        ending: Ending | None = None,
    ) -> Message:
        return Message(
            id=self._generation.request_id,
            model=self._generation.engine.model_name,
            content=list(content),
            usage=self._usage(output),
            warnings=self._warnings,
            **(ending or Ending()).model_dump(),
        )

    def _read(self, choice: CompletionOutput) -> Reading:
        """What is new: what is said in it, and the calls of tools."""
        if self._generation.sampling.prompt_alone:
            return Reading()
        reading = self._reader.feed(self._cursor.new_text(choice), finished=choice.finished)
        return reading if self._tells_thoughts else reading.without_thoughts()

    def _ending(self, choice: CompletionOutput, *, has_calls: bool) -> Ending:
        return Ending.of(choice, self._generation.sampling, has_calls=has_calls)

    def _usage(self, output: RequestOutput) -> MessageUsage:
        alone = self._generation.sampling.prompt_alone
        return MessageUsage.of(output, prompt_alone=alone)
