"""`/v1/responses`: a response is made, told again, listed and forgotten."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal

from fastapi import APIRouter, Query, Request, Response

from pagoda.errors import InvalidRequestError
from pagoda.server.answer import respond
from pagoda.server.body_route import BodyRoute
from pagoda.server.door import tenant_of
from pagoda.server.errors import REFUSALS
from pagoda.server.json_body import JSONBody
from pagoda.server.json_parts import list_json, object_json
from pagoda.server.options import ServerOptions
from pagoda.server.prompts import Prompts
from pagoda.server.responses_api.answer import ResponseAnswer
from pagoda.server.responses_api.body import ResponsesRequest, own_field_names
from pagoda.server.responses_api.kept_items import KeptItem
from pagoda.server.responses_api.response import (
    DeletedResponse,
    InputTokens,
    ItemList,
    ResponseObject,
)
from pagoda.server.responses_api.store import ResponseStore
from pagoda.server.thinking import Thinking

if TYPE_CHECKING:
    from pagoda.engine.async_engine import AsyncEngine

_MOST_LISTED = 100


def responses_routes(
    engine: AsyncEngine, options: ServerOptions, prompts: Prompts, store: ResponseStore
) -> APIRouter:
    router = APIRouter(prefix="/v1/responses", route_class=BodyRoute)
    thinking = Thinking(engine, options.reasoning_parser)

    @router.post("", response_model=ResponseObject, responses=REFUSALS)
    async def create_response(request: Request, body: ResponsesRequest) -> Response:
        """Go on with a conversation."""
        body.check(engine.model_names)
        shelf = store.of(tenant_of(request.scope))
        items = await prompts.items_of(request, body)
        asked = await prompts.of_items(request, body, items)
        with own_field_names():
            is_kept = body.store is not False and options.response_store_bytes > 0
            answer_id, tools = f"resp_{uuid.uuid4().hex}", body.tool_use.reader(engine)
            keep = partial(shelf.put, answer_id, items) if is_kept else None
            begin = partial(ResponseAnswer, body=body, keep=keep)
            return await respond(
                begin,
                answer_id,
                engine,
                options,
                request,
                body,
                asked,
                tools=tools,
                thinking=thinking,
            )

    @router.post("/input_tokens", responses=REFUSALS)
    async def count_input_tokens(request: Request, body: ResponsesRequest) -> InputTokens:
        """How many tokens the prompt of such a response would have."""
        body.check(engine.model_names)
        [prompt] = await prompts.of_response(request, body, to_answer=False)
        return InputTokens(input_tokens=len(prompt))

    @router.get("/{response_id}", response_model=ResponseObject, responses=REFUSALS)
    async def tell_response(request: Request, response_id: str, stream: bool = False) -> Response:
        """A stored response."""
        if stream:
            raise InvalidRequestError("stream", stream, "a stored response is told whole")
        stored = await asyncio.to_thread(store.of(tenant_of(request.scope)).get, response_id)
        return JSONBody(stored.json)

    @router.delete("/{response_id}", responses=REFUSALS)
    async def delete_response(request: Request, response_id: str) -> DeletedResponse:
        """Forget a stored response."""
        await asyncio.to_thread(store.of(tenant_of(request.scope)).delete, response_id)
        return DeletedResponse(id=response_id)

    @router.get("/{response_id}/input_items", response_model=ItemList, responses=REFUSALS)
    async def list_input_items(
        request: Request,
        response_id: str,
        after: str | None = None,
        limit: Annotated[int, Query(ge=1, le=_MOST_LISTED)] = 20,
        order: Literal["asc", "desc"] = "desc",
    ) -> Response:
        """The items that a stored response was made from, a page of them."""
        stored = await asyncio.to_thread(store.of(tenant_of(request.scope)).get, response_id)
        items = stored.input if order == "asc" else stored.input[::-1]
        return JSONBody(await asyncio.to_thread(_page, items, after, limit))

    return router


def _page(items: Sequence[KeptItem], after: str | None, limit: int) -> bytes:
    """An `ItemList`. Raises `InvalidRequestError` where there is no item `after` which to begin."""
    ids = [item.id for item in items]
    if after is not None and after not in ids:
        raise InvalidRequestError("after", after, "no such item among them")
    start = 0 if after is None else ids.index(after) + 1
    shown = items[start : start + limit]
    page = ItemList(
        data=[],
        first_id=shown[0].id if shown else None,
        last_id=shown[-1].id if shown else None,
        has_more=start + limit < len(items),
    )
    return object_json(page, data=list_json(item.json for item in shown))
