"""`/v1/responses`: a response is made, told again, listed and forgotten."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal

from fastapi import APIRouter, Query, Request, Response

from pagoda.errors import InvalidRequestError
from pagoda.models.chat_options import ChatOptions
from pagoda.server.answer import respond
from pagoda.server.body_route import BodyRoute
from pagoda.server.door import tenant_of
from pagoda.server.errors import REFUSALS, JSONBody
from pagoda.server.options import ServerOptions
from pagoda.server.responses import json_of
from pagoda.server.responses_api.answer import ResponseAnswer
from pagoda.server.responses_api.body import ResponsesRequest, own_field_names
from pagoda.server.responses_api.input_items import Item, MessageItem, template_messages
from pagoda.server.responses_api.response import (
    DeletedResponse,
    InputTokens,
    ItemList,
    ResponseObject,
)
from pagoda.server.responses_api.store import ResponseStore

if TYPE_CHECKING:
    from pagoda.engine.async_engine import AsyncEngine

_MOST_LISTED = 100


def responses_routes(engine: AsyncEngine, options: ServerOptions) -> APIRouter:
    router = APIRouter(prefix="/v1/responses", route_class=BodyRoute)
    store = ResponseStore(options.response_store_bytes)

    async def prompt_of(body: ResponsesRequest, items: Sequence[Item]) -> list[int]:
        messages = template_messages(body.instructions, items)
        if not messages:
            raise InvalidRequestError("input", body.input, "must hold at least one message")
        options = ChatOptions(truncation=body.prompt_truncation)
        return await engine.tokenizer.chat(messages, body.tool_use().described, options)

    @router.post("", response_model=ResponseObject, responses=REFUSALS)
    async def create_response(request: Request, body: ResponsesRequest) -> Response:
        """Go on with a conversation."""
        body.check(engine.model_names)
        shelf = store.of(tenant_of(request.scope))
        with own_field_names():
            items = shelf.conversation(body.previous_response_id, body.items())
            prompts = [await prompt_of(body, items)]
            is_kept = body.store is not False and options.response_store_bytes > 0
            keep = partial(shelf.put, asked=items) if is_kept else None
            begin = partial(ResponseAnswer, body=body, keep=keep)
            answer_id, tools = f"resp_{uuid.uuid4().hex}", body.tool_use().reader(engine)
            return await respond(
                begin, answer_id, engine, options, request, body, prompts, tools=tools
            )

    @router.post("/input_tokens", responses=REFUSALS)
    async def count_input_tokens(request: Request, body: ResponsesRequest) -> InputTokens:
        """How many tokens the prompt of such a response would have."""
        body.check(engine.model_names)
        shelf = store.of(tenant_of(request.scope))
        with own_field_names():
            items = shelf.conversation(body.previous_response_id, body.items())
            return InputTokens(input_tokens=len(await prompt_of(body, items)))

    @router.get("/{response_id}", response_model=ResponseObject, responses=REFUSALS)
    async def tell_response(request: Request, response_id: str, stream: bool = False) -> Response:
        """A stored response."""
        if stream:
            raise InvalidRequestError("stream", stream, "a stored response is told whole")
        stored = store.of(tenant_of(request.scope)).get(response_id)
        return JSONBody(json_of(stored.response))

    @router.delete("/{response_id}", responses=REFUSALS)
    async def delete_response(request: Request, response_id: str) -> DeletedResponse:
        """Forget a stored response."""
        store.of(tenant_of(request.scope)).delete(response_id)
        return DeletedResponse(id=response_id)

    @router.get("/{response_id}/input_items", responses=REFUSALS)
    async def list_input_items(
        request: Request,
        response_id: str,
        after: str | None = None,
        limit: Annotated[int, Query(ge=1, le=_MOST_LISTED)] = 20,
        order: Literal["asc", "desc"] = "desc",
    ) -> ItemList:
        """The items that a stored response was made from, a page of them."""
        items = list(store.of(tenant_of(request.scope)).get(response_id).input)
        return _page(items if order == "asc" else items[::-1], after, limit)

    return router


def _page(items: Sequence[Item], after: str | None, limit: int) -> ItemList:
    """Raises `InvalidRequestError` where there is no item `after` which to begin."""
    ids = [str(item.id) for item in items]
    if after is not None and after not in ids:
        raise InvalidRequestError("after", after, "no such item among them")
    start = 0 if after is None else ids.index(after) + 1
    shown = items[start : start + limit]
    return ItemList(
        data=[_told(item) for item in shown],
        first_id=shown[0].id if shown else None,
        last_id=shown[-1].id if shown else None,
        has_more=start + limit < len(items),
    )


def _told(item: Item) -> dict[str, object]:
    told = item.in_parts() if isinstance(item, MessageItem) else item
    return {"status": "completed", **told.model_dump(exclude_none=True)}
