"""A conversation as chat templates are given it, whatever the API that it came by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pagoda.models.chat_options import DEFAULT_CHAT_OPTIONS, ChatOptions, TemplateValue

if TYPE_CHECKING:
    from pagoda.engine.async_engine import AsyncEngine


@dataclass(frozen=True, slots=True)
class TemplateChat:
    """What a prompt is made of."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]]
    options: ChatOptions = DEFAULT_CHAT_OPTIONS

    async def token_ids(
        self,
        engine: AsyncEngine,
        tenant: str,
        defaults: Mapping[str, TemplateValue] | None = None,
        *,
        to_answer: bool = True,
    ) -> list[int]:
        """A tenant's prompt; `defaults` are for the template where nothing else was said. One that
        is not `to_answer` may be longer.

        Raises `InvalidRequestError` naming `messages`.
        """
        options = self.options
        if defaults:
            kwargs = {**defaults, **options.template_kwargs}
            options = replace(options, template_kwargs=kwargs)
        return await engine.tokenizer.chat(
            self.messages, self.tools, options, tenant=tenant, to_answer=to_answer
        )
