"""A conversation as chat templates are given it, whatever the API that it came by."""

from __future__ import annotations

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

    async def token_ids(self, engine: AsyncEngine) -> list[int]:
        """The prompt. Raises `InvalidRequestError` naming `messages`."""
        return await engine.tokenizer.chat(self.messages, self.tools, self.options)
