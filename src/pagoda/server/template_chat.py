"""A conversation as chat templates are given it, whatever the API that it came by."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pagoda.models.chat_options import DEFAULT_CHAT_OPTIONS, ChatOptions

if TYPE_CHECKING:
    from pagoda.engine.async_engine import AsyncEngine


@dataclass(frozen=True, slots=True)
class TemplateChat:
    """What a prompt is made of."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]]
    options: ChatOptions = DEFAULT_CHAT_OPTIONS


async def prompt_of(engine: AsyncEngine, make: Callable[[], TemplateChat]) -> list[int]:
    """Token ids of what `make` returns. It is called beside the event loop: messages, calls and
    schemas may be long to read.

    Raises `InvalidRequestError` naming `messages` or `tools`.
    """
    chat = await asyncio.to_thread(make)
    return await engine.tokenizer.chat(chat.messages, chat.tools, chat.options)
