"""From a checked body to its response: what the routes that generate have in common."""

from __future__ import annotations

import time
import uuid
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from fastapi import Request, Response
from pydantic import BaseModel

from pagoda.server.door import places_of, tenant_of
from pagoda.server.errors import JSONBody
from pagoda.server.generation import Echo, Generation, unless_disconnected, usage_of
from pagoda.server.options import ServerOptions
from pagoda.server.protocol import ChatCompletionRequest, CompletionRequest
from pagoda.server.responses import Usage, json_of
from pagoda.server.streaming import ChoiceCursor, ChunkWriter, stream
from pagoda.server.tally import tally_of
from pagoda.server.text_chunk import TextChunk
from pagoda.server.tool_calls import ToolReader

if TYPE_CHECKING:
    from pagoda.engine.async_engine import AsyncEngine
    from pagoda.engine.outputs import RequestOutput


class Answer(ChunkWriter):
    """Shapes the outputs of one HTTP request as its API wants them, whole or in chunks."""

    id_prefix: str

    def __init__(self, generation: Generation) -> None:
        self._generation = generation
        self._cursors: defaultdict[int, ChoiceCursor] = defaultdict(ChoiceCursor)
        self._stamp: dict[str, Any] = {
            "id": generation.request_id,
            "created": int(time.time()),
            "model": generation.engine.model_name,
        }
        """What every response and chunk carries."""
        self._text_chunks: dict[int, TextChunk] = {}
        """By the index of the choice."""

    def usage_of(self, outputs: Sequence[RequestOutput]) -> Usage:
        """Tokens in and out of one output per prompt; none out where only prompts are told."""
        echo = self._generation.echo
        return usage_of(outputs, prompts_alone=echo is not None and echo.alone)

    @abstractmethod
    def _plain_chunk(self, index: int, text: str) -> BaseModel:
        """A chunk in which the choice of that index goes on with `text`, and nothing else is."""

    def _text_chunk(self, index: int, text: str) -> bytes:
        """The same as JSON."""
        if index not in self._text_chunks:
            self._text_chunks[index] = TextChunk(partial(self._plain_chunk, index))
        return self._text_chunks[index].saying(text)

    @abstractmethod
    def whole(self, outputs: Sequence[RequestOutput]) -> BaseModel:
        """All choices of all prompts, finished."""


async def respond(
    kind: type[Answer],
    engine: AsyncEngine,
    options: ServerOptions,
    request: Request,
    body: CompletionRequest | ChatCompletionRequest,
    prompts: Sequence[str | list[int]],
    echo: Echo | None = None,
    tools: ToolReader | None = None,
) -> Response:
    """Run the prompts of a checked body and answer in the shape of `kind`.

    Raises what the engine raises before the first output, `RejectedError` and `ClientGoneError`.
    """
    sampling = body.sampling()
    num_sequences = len(prompts) * sampling.n
    places = places_of(request.scope)
    places.hold(num_sequences, "prompt" if sampling.n == 1 else "n")
    tally = tally_of(request.scope)
    tally.is_streamed = bool(body.stream)
    tally.prompts_alone = echo is not None and echo.alone
    tally.answer_id = f"{kind.id_prefix}-{uuid.uuid4().hex}"
    generation = Generation(
        engine=engine,
        request_id=tally.answer_id,
        prompts=prompts,
        sampling=sampling,
        options=body.request_options(tenant=tenant_of(request.scope)),
        timeout_s=options.request_timeout or None,
        arrived_at=places.entered_at,
        echo=echo,
        tools=tools,
        tally=tally,
    )
    answer = kind(generation)
    if body.stream:
        return await stream(request, generation, answer, body.include_usage)
    outputs = await unless_disconnected(request, generation.finished())
    return JSONBody(json_of(answer.whole(outputs)))
