"""`/cache/explain` and `/cache/explanations`: why prompts, or no more of them, were found."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request
from pydantic import BaseModel

from pagoda.server.body_route import BodyRoute, beside_loop
from pagoda.server.chat_request import ChatCompletionRequest
from pagoda.server.completion_request import CompletionRequest
from pagoda.server.door import holder_of
from pagoda.server.errors import REFUSALS
from pagoda.server.explained_body import ExplainedBody
from pagoda.server.explanation import CacheExplanation, PromptLookup
from pagoda.server.keys import Holder
from pagoda.server.messages_api.body import MessagesBody
from pagoda.server.prompts import Prompt, Prompts
from pagoda.server.recent_lookups import RecentLookups
from pagoda.server.responses_api.body import ResponsesRequest

if TYPE_CHECKING:
    from pagoda.engine.async_engine import AsyncEngine


class PromptExplanations(BaseModel):
    """Of several prompts, in their order."""

    prompts: list[CacheExplanation]


class Explanations(BaseModel):
    """Of one request."""

    id: str
    prompts: list[CacheExplanation]


def explain_routes(engine: AsyncEngine, prompts: Prompts, recent: RecentLookups) -> APIRouter:
    router = APIRouter(route_class=BodyRoute)

    def told(lookup: PromptLookup, holder: Holder) -> CacheExplanation:
        token_bytes, lossy_form = engine.tokenizer.token_bytes, engine.transfers.lossy_form
        return lookup.told(holder, token_bytes, lossy_form=lossy_form)

    prompts_of: Mapping[type[BaseModel], Callable[[Request, Any], Awaitable[Sequence[Prompt]]]] = {
        CompletionRequest: prompts.of_completion,
        ChatCompletionRequest: prompts.of_chat,
        MessagesBody: prompts.of_message,
        ResponsesRequest: prompts.of_response,
    }

    @router.post("/cache/explain", responses=REFUSALS)
    async def explain(
        request: Request, body: ExplainedBody
    ) -> CacheExplanation | PromptExplanations:
        """What of a request's prompt would be found now, and why no more; of several prompts a
        list. Nothing is computed or kept."""
        asked, holder = body.root, holder_of(request.scope)
        asked.check(engine.model_names)
        found = await prompts_of[type(asked)](request, asked)
        sampling = await beside_loop(request, partial(asked.sampling, engine.max_model_len))
        options, explained = asked.request_options(holder), []
        for prompt in found:
            miss, token_ids = await engine.look_up(
                prompt, options, prompt_logprobs=sampling.prompt_logprobs
            )
            explained.append(told(PromptLookup.of(miss, token_ids), holder))
        return explained[0] if len(explained) == 1 else PromptExplanations(prompts=explained)

    @router.get("/cache/explanations/{request_id:path}", responses=REFUSALS)
    async def explained(request: Request, request_id: str) -> Explanations:
        """What the prompts of a request that has ended had found, by its own id or its answer's."""
        holder = holder_of(request.scope)
        lookups = recent.of(request_id, holder)
        return Explanations(id=request_id, prompts=[told(each, holder) for each in lookups])

    return router
