"""`/cache/explain` and `/cache/explanations`: why prompts, or no more of them, were found."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from fastapi import APIRouter, Request
from pydantic import BaseModel

from pagoda.request import RequestOptions
from pagoda.server.body import Text
from pagoda.server.body_route import BodyRoute, beside_loop
from pagoda.server.door import holder_of
from pagoda.server.errors import REFUSALS
from pagoda.server.explanation import CacheExplanation, PromptLookup
from pagoda.server.keys import Holder
from pagoda.server.recent_lookups import RecentLookups
from pagoda.server.token_requests import TokenizeRequest

if TYPE_CHECKING:
    from pagoda.engine.async_engine import AsyncEngine


class ExplainRequest(TokenizeRequest):
    """The body of `/cache/explain`: a prompt or the messages of a chat, and what belongs to them in
    the cache. Other fields of a request change nothing."""

    cache_salt: Text | None = None
    kv_retention: Text | None = None


class Explanations(BaseModel):
    """Of one request."""

    id: str
    prompts: list[CacheExplanation]


def explain_routes(engine: AsyncEngine, recent: RecentLookups) -> APIRouter:
    router = APIRouter(route_class=BodyRoute)

    def told(lookup: PromptLookup, holder: Holder) -> CacheExplanation:
        token_bytes, lossy_form = engine.tokenizer.token_bytes, engine.transfers.lossy_form
        return lookup.told(holder, token_bytes, lossy_form=lossy_form)

    @router.post("/cache/explain", responses=REFUSALS)
    async def explain(request: Request, body: ExplainRequest) -> CacheExplanation:
        """What of a prompt would be found now, and why no more. Nothing is computed or kept."""
        body.check(engine.model_names)
        holder = holder_of(request.scope)
        prompt: str | list[int] = body.prompt or ""
        if body.messages is not None:
            chat = await beside_loop(request, partial(body.template_chat, engine.max_model_len))
            prompt = await chat.token_ids(engine, holder.tenant)
        options = RequestOptions(
            tenant=holder.tenant,
            cache_salt=body.cache_salt or "",
            kv_retention=body.kv_retention,
            add_special_tokens=body.add_special_tokens is not False,
        )
        miss, token_ids = await engine.look_up(prompt, options)
        return told(PromptLookup.of(miss, token_ids), holder)

    @router.get("/cache/explanations/{request_id:path}", responses=REFUSALS)
    async def explained(request: Request, request_id: str) -> Explanations:
        """What the prompts of a request that has ended had found, by its own id or its answer's."""
        holder = holder_of(request.scope)
        lookups = recent.of(request_id, holder)
        return Explanations(id=request_id, prompts=[told(each, holder) for each in lookups])

    return router
