"""A model's tokenizer for callers in an event loop, which goes on while a long text is read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, ParamSpec, TypeVar

from pagoda.engine.checked_tokenizer import CheckedTokenizer
from pagoda.engine.devices.cores import num_usable_cores
from pagoda.engine.vocabulary import Vocabulary
from pagoda.models.chat_options import DEFAULT_CHAT_OPTIONS, ChatOptions
from pagoda.models.tool_prompt import ToolFormat

P = ParamSpec("P")
R = TypeVar("R")


class AsyncTokenizer:
    """`CheckedTokenizer`, called in threads beside the event loop.

    There are half as many of them as cores, so that many long texts at a time leave cores to the
    engine.
    """

    def __init__(self, checked: CheckedTokenizer, vocabulary: Vocabulary) -> None:
        self._checked = checked
        self._vocabulary = vocabulary
        self._threads = ThreadPoolExecutor(max(1, num_usable_cores() // 2), "tokenizer")

    async def run(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """What the function returns, called in one of the threads."""
        call = partial(function, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)

    @property
    def has_chat_template(self) -> bool:
        """Chats can be answered. Asking for it prepares the first of them."""
        return self._checked.tokenizer.has_chat_template

    @property
    def template_names(self) -> frozenset[str]:
        """What the chat template reads beside messages and tools."""
        return self._checked.tokenizer.template_names

    @property
    def tool_format(self) -> ToolFormat:
        """The form in which the model calls tools that it was told of."""
        return self._checked.tokenizer.tool_format

    async def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] = (),
        options: ChatOptions = DEFAULT_CHAT_OPTIONS,
    ) -> list[int]:
        """See `CheckedTokenizer.chat`."""
        return await self.run(self._checked.chat, messages, tools, options)

    async def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """See `CheckedTokenizer.encode`."""
        return await self.run(self._checked.encode, text, add_special_tokens)

    async def decode(self, token_ids: Sequence[int], field: str = "tokens") -> str:
        """See `CheckedTokenizer.decode`."""
        return await self.run(self._checked.decode, token_ids, field)

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of its UTF-8, whole characters or parts of one."""
        return self._vocabulary.token_bytes(token_id)

    def token_text(self, token_id: int) -> str:
        """What one token of the vocabulary stands for, alone."""
        return self._vocabulary.token_text(token_id)
