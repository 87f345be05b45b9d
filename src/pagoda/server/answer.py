"""From a checked body to its response: what the routes that generate have in common."""

from __future__ import annotations

import asyncio
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Protocol, cast

from fastapi import Request, Response

from pagoda.request import RequestOptions, SamplingParams
from pagoda.server.body_route import beside_loop
from pagoda.server.door import holder_of, places_of, tenant_of
from pagoda.server.generation import Echo, Generation, PromptOutput, unless_disconnected
from pagoda.server.json_body import JSONBody
from pagoda.server.keys import Holder
from pagoda.server.logprob_bound import bounded
from pagoda.server.options import ServerOptions
from pagoda.server.responses import ErrorDetail
from pagoda.server.streaming import stream
from pagoda.server.tally import tally_of
from pagoda.server.thinking import Thinking
from pagoda.server.tool_calls import NO_TOOLS, ToolReader

if TYPE_CHECKING:
    from pagoda.engine.async_engine import AsyncEngine
    from pagoda.engine.outputs import RequestOutput


class GenerationBody(Protocol):
    """What a body that asks for an answer says, whatever its API."""

    stream: bool | None

    def sampling(self, max_model_len: int) -> SamplingParams:
        """For a model of that length. Raises `InvalidRequestError` for a value out of range."""
        ...

    def request_options(self, holder: Holder) -> RequestOptions:
        """What it says beside its prompts and its sampling."""
        ...


class Answer(ABC):
    """Shapes the outputs of one HTTP request as its API wants them, whole or in events."""

    def __init__(self, generation: Generation) -> None:
        self._generation = generation

    @abstractmethod
    def whole(self, outputs: Sequence[RequestOutput]) -> bytes:
        """All choices of all prompts, finished, as JSON. Any thread may call it."""

    def takes_long(self, item: PromptOutput) -> bool:
        """`news` should be called beside the event loop: there is much to write."""
        return False

    @abstractmethod
    def news(self, item: PromptOutput) -> bytes:
        """Events of what is new in `item`; nothing while text is held back."""

    @abstractmethod
    def end(self, outputs: Sequence[RequestOutput]) -> Iterable[bytes]:
        """Events that come behind the last output of each prompt, as they are to be sent."""

    def ends_long(self) -> bool:
        """What `end` gives should be taken beside the event loop: there is much to write."""
        return False

    @abstractmethod
    def failure(self, detail: ErrorDetail) -> bytes:
        """Events that come in place of the rest where something has failed."""


def new_id(prefix: str) -> str:
    """An id for an answer that no other has."""
    return f"{prefix}-{uuid.uuid4().hex}"


async def respond(
    begin: Callable[[Generation], Answer],
    answer_id: str,
    engine: AsyncEngine,
    options: ServerOptions,
    request: Request,
    body: GenerationBody,
    prompts: Sequence[str | list[int]],
    echo: Echo | None = None,
    tools: ToolReader = NO_TOOLS,
    thinking: Thinking | None = None,
) -> Response:
    """Run the prompts of a checked body and answer in the shape of what `begin` makes.

    With `thinking` thoughts are told apart; the one prompt is then token ids. Raises what the
    engine raises before the first output, `RejectedError` and `ClientGoneError`.
    """
    make = partial(body.sampling, engine.max_model_len)  # it may put schemas together
    sampling = await beside_loop(request, make)
    sampling = await bounded(sampling, prompts, engine, echo, tenant_of(request.scope))
    num_sequences = len(prompts) * sampling.n
    places = places_of(request.scope)
    places.hold(num_sequences, "prompt" if sampling.n == 1 else "n")
    tally = tally_of(request.scope)
    tally.is_streamed = bool(body.stream)
    tally.prompts_alone = echo is not None and echo.alone
    tally.answer_id = answer_id
    holder = holder_of(request.scope)
    asked = body.request_options(holder)
    if thinking is not None:
        [prompt] = prompts
        is_structured = sampling.structured_outputs is not None
        tools = thinking.reader(tools, cast(Sequence[int], prompt), is_structured=is_structured)
        asked = replace(asked, shown_ids=tools.mark_ids, thought=tools.thought)
    generation = Generation(
        engine=engine,
        request_id=answer_id,
        prompts=prompts,
        sampling=sampling,
        options=asked,
        timeout_s=options.request_timeout or None,
        arrived_at=places.entered_at,
        echo=echo,
        holder=holder,
        tools=tools,
        tally=tally,
    )
    answer = begin(generation)
    if body.stream:
        return await stream(request, generation, answer)
    outputs = await unless_disconnected(request, generation.finished())
    return JSONBody(await asyncio.to_thread(answer.whole, outputs))
