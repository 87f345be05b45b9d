"""From the bodies of all APIs to their prompts, whoever answers, counts or explains them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from fastapi import Request

from pagoda.server.body_route import beside_loop
from pagoda.server.chat_request import ChatCompletionRequest
from pagoda.server.completion_request import CompletionRequest
from pagoda.server.door import tenant_of
from pagoda.server.messages_api.body import ConversationBody
from pagoda.server.options import ServerOptions
from pagoda.server.responses_api.body import ResponsesRequest, own_field_names
from pagoda.server.responses_api.input_items import Item
from pagoda.server.responses_api.kept_items import KeptItem, said_in
from pagoda.server.responses_api.store import ResponseStore
from pagoda.server.template_chat import TemplateChat
from pagoda.server.token_requests import TokenizeRequest
from pagoda.truncation import truncated

if TYPE_CHECKING:
    from pagoda.engine.async_engine import AsyncEngine

Prompt = str | list[int]


class Prompts:
    """Makes the prompts of requests; a conversation is one.

    With `to_answer` false a conversation is only counted, and may be some times as long as one that
    is answered. All methods raise `InvalidRequestError` for what cannot be told to the model.
    """

    def __init__(self, engine: AsyncEngine, options: ServerOptions, store: ResponseStore) -> None:
        self._engine = engine
        self._defaults = options.default_chat_template_kwargs
        self._store = store

    async def of_completion(self, request: Request, body: CompletionRequest) -> list[Prompt]:
        """Each of its prompts as it is given to the model: token ids where it is cut, else the
        prompt itself."""
        tenant = tenant_of(request.scope)
        return [await self._taken(each, body, tenant) for each in body.prompts()]

    async def of_chat(
        self,
        request: Request,
        body: ChatCompletionRequest | TokenizeRequest,
        *,
        to_answer: bool = True,
    ) -> list[list[int]]:
        make = partial(body.template_chat, self._engine.max_model_len)
        return await self._of(request, await beside_loop(request, make), to_answer)

    async def of_message(
        self, request: Request, body: ConversationBody, *, to_answer: bool = True
    ) -> list[list[int]]:
        chat = await beside_loop(request, body.template_chat)
        return await self._of(request, chat, to_answer)

    async def of_response(
        self, request: Request, body: ResponsesRequest, *, to_answer: bool = True
    ) -> list[list[int]]:
        items = await self.items_of(request, body)
        return await self.of_items(request, body, items, to_answer=to_answer)

    async def items_of(self, request: Request, body: ResponsesRequest) -> Sequence[Item | KeptItem]:
        """All items of a response's prompt, kept ones first."""
        shelf = self._store.of(tenant_of(request.scope))
        find = partial(shelf.conversation, body.previous_response_id, body.items())
        with own_field_names():
            # In threads, as whatever waits for a shelf: it may have thousands of items to forget.
            return await asyncio.to_thread(find)

    async def of_items(
        self,
        request: Request,
        body: ResponsesRequest,
        items: Sequence[Item | KeptItem],
        *,
        to_answer: bool = True,
    ) -> list[list[int]]:
        """A response's prompt, of its items."""
        make = partial(body.template_chat, said_in(items), self._engine.max_model_len)
        with own_field_names():
            # In a thread even for a short body: the items before it may be many to read.
            return await self._of(request, await asyncio.to_thread(make), to_answer)

    async def _of(self, request: Request, chat: TemplateChat, to_answer: bool) -> list[list[int]]:
        tenant = tenant_of(request.scope)
        asked = chat.token_ids(self._engine, tenant, self._defaults, to_answer=to_answer)
        return [await asked]

    async def _taken(self, prompt: Prompt, body: CompletionRequest, tenant: str) -> Prompt:
        truncation = body.prompt_truncation
        if truncation is None:
            return prompt
        token_ids: Sequence[int]
        if isinstance(prompt, str):
            adds = body.add_special_tokens is not False
            token_ids = await self._engine.tokenizer.encode(prompt, adds, tenant=tenant)
        else:
            token_ids = prompt
        taken = truncated(token_ids, truncation, self._engine.max_model_len)
        return prompt if len(taken) == len(token_ids) else [*taken]
