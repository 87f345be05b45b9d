"""Whom `pagoda chat` talks to: an engine in this process, or a server."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Protocol

from pagoda.cli.figures import Figures
from pagoda.errors import PagodaError
from pagoda.models.chat_options import DEFAULT_CHAT_OPTIONS, ChatOptions
from pagoda.request import RequestOptions, SamplingParams
from pagoda.server.thinking import Thinking
from pagoda.server.tool_calls import NO_TOOLS

if TYPE_CHECKING:
    from pagoda.engine.async_engine import AsyncEngine

Message = dict[str, str]


@dataclass(frozen=True, slots=True)
class Said:
    """An answer so far."""

    text: str
    finish_reason: str | None
    figures: Figures | None
    """Without the time it took; None as long as a server has not told them."""
    thought: str = ""
    """What was thought before it, where that is told apart."""


class ServerError(PagodaError):
    """The server cannot be reached, or refused what it was asked."""


class Partner(Protocol):
    """Answers conversations."""

    @property
    def name(self) -> str:
        """The model's."""
        ...

    async def open(self) -> None:
        """To be called before the first answer. Raises `PagodaError` where there will be none."""
        ...

    def answer(
        self, messages: Sequence[Message], sampling: SamplingParams
    ) -> AsyncGenerator[Said, None]:
        """The answer as it grows; closing it ends it.

        Raises `PagodaError`; the conversation may go on without the last message.
        """
        ...

    async def close(self) -> None:
        """To be called after the last answer."""
        ...


class EnginePartner:
    """An engine in this process."""

    def __init__(self, engine: AsyncEngine, options: ChatOptions = DEFAULT_CHAT_OPTIONS) -> None:
        self._engine = engine
        self._options = options
        self._thinking = Thinking(engine, "auto")
        self._ids = count()

    @property
    def name(self) -> str:
        return self._engine.model_name

    async def open(self) -> None:
        self._engine.start()

    async def answer(
        self, messages: Sequence[Message], sampling: SamplingParams
    ) -> AsyncGenerator[Said, None]:
        """Raises `InvalidRequestError` for a conversation that is too long, among others."""
        chat = self._engine.tokenizer.chat
        prompt = await chat(list(messages), (), self._options, tenant="")
        is_structured = sampling.structured_outputs is not None
        answers = self._thinking.reader(NO_TOOLS, prompt, is_structured=is_structured)
        stream = self._engine.generate(
            prompt,
            sampling,
            request_id=f"chat-{next(self._ids)}",
            options=RequestOptions(shown_ids=answers.mark_ids, thought=answers.thought),
        )
        reader, num_read, said, thought = answers.begin(), 0, "", ""
        async with aclosing(stream) as outputs:
            async for output in outputs:
                choice = output.outputs[0]
                news = reader.feed(choice.text[num_read:], finished=choice.finished)
                num_read = len(choice.text)
                said, thought = said + news.content, thought + news.thought
                yield Said(said, choice.finish_reason, Figures.of([output], 0.0), thought)

    async def close(self) -> None:
        await self._engine.shutdown()
