"""`/tokenize` and `/detokenize`: text or a chat to token ids, and back."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from fastapi import APIRouter, Request, Response

from pagoda.server.body_route import BodyRoute
from pagoda.server.door import tenant_of
from pagoda.server.errors import REFUSALS
from pagoda.server.json_body import JSONBody
from pagoda.server.prompts import Prompts
from pagoda.server.responses import DetokenizeResponse, TokenizeResponse, json_of
from pagoda.server.token_requests import DetokenizeRequest, TokenizeRequest

if TYPE_CHECKING:
    from pagoda.engine.async_engine import AsyncEngine


def token_routes(engine: AsyncEngine, prompts: Prompts) -> APIRouter:
    router = APIRouter(route_class=BodyRoute)

    @router.post("/tokenize", response_model=TokenizeResponse, responses=REFUSALS)
    async def tokenize(request: Request, body: TokenizeRequest) -> Response:
        """The token ids of a prompt, or of the prompt that a chat becomes."""
        body.check(engine.model_names)
        if body.messages is not None:
            [tokens] = await prompts.of_chat(request, body, to_answer=False)
        else:
            adds = body.add_special_tokens is not False
            tenant = tenant_of(request.scope)
            tokens = await engine.tokenizer.encode(body.prompt or "", adds, tenant=tenant)
        ignored = [*body.ignored(), *body.unread(engine.tokenizer.template_names)]
        warnings = [each.warning for each in ignored]
        return await asyncio.to_thread(_told, engine, tokens, body.return_token_strs, warnings)

    @router.post("/detokenize", response_model=DetokenizeResponse, responses=REFUSALS)
    async def detokenize(request: Request, body: DetokenizeRequest) -> Response:
        """The text of token ids."""
        body.check(engine.model_names)
        text = await engine.tokenizer.decode(body.tokens, tenant=tenant_of(request.scope))
        return JSONBody(json_of(DetokenizeResponse(prompt=text)))

    return router


def _told(
    engine: AsyncEngine, tokens: list[int], with_texts: bool, warnings: list[str]
) -> Response:
    """Written in a thread of its own: there may be hundreds of thousands of tokens."""
    told = TokenizeResponse(
        count=len(tokens),
        max_model_len=engine.max_model_len,
        tokens=tokens,
        token_strs=[engine.tokenizer.token_text(each) for each in tokens] if with_texts else None,
        warnings=warnings or None,
    )
    return JSONBody(told.model_dump_json())
