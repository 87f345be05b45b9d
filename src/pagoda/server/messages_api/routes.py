"""`/v1/messages` and its `count_tokens`: a conversation in, a message or its length out."""

from __future__ import annotations

import uuid
from functools import partial
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request, Response

from pagoda.server.answer import respond
from pagoda.server.body_route import BodyRoute
from pagoda.server.generation import Echo
from pagoda.server.messages_api.answer import MessageAnswer
from pagoda.server.messages_api.body import CountTokensBody, MessagesBody
from pagoda.server.messages_api.errors import MESSAGES_REFUSALS, MessagesErrorResponse
from pagoda.server.messages_api.message import Message, TokensCount
from pagoda.server.options import ServerOptions
from pagoda.server.prompts import Prompts
from pagoda.server.thinking import Thinking

if TYPE_CHECKING:
    from pagoda.engine.async_engine import AsyncEngine


def messages_routes(engine: AsyncEngine, options: ServerOptions, prompts: Prompts) -> APIRouter:
    router = APIRouter(route_class=BodyRoute)
    thinking = Thinking(engine, options.reasoning_parser)

    described: dict[int | str, dict[str, Any]] = {400: {"model": MessagesErrorResponse}}

    @router.post("/v1/messages", response_model=Message, responses=MESSAGES_REFUSALS | described)
    async def create_message(request: Request, body: MessagesBody) -> Response:
        """Answer a conversation, as Anthropic's API does."""
        body.check(engine.model_names)
        asked, ignored = await prompts.of_message(request, body), body.ignored_stops()
        return await respond(
            partial(MessageAnswer, tells_thoughts=body.wants_thoughts, ignored=ignored),
            f"msg_{uuid.uuid4().hex}",
            engine,
            options,
            request,
            body,
            asked,
            echo=Echo(texts=(), alone=True) if body.wants_prompt_alone else None,
            tools=body.tool_use.reader(engine),
            thinking=thinking,
        )

    @router.post("/v1/messages/count_tokens", responses=MESSAGES_REFUSALS)
    async def count_tokens(request: Request, body: CountTokensBody) -> TokensCount:
        """The tokens of the prompt that a conversation becomes."""
        body.check(engine.model_names)
        [prompt] = await prompts.of_message(request, body, to_answer=False)
        return TokensCount(input_tokens=len(prompt))

    return router
