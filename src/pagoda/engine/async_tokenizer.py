"""A model's tokenizer for callers in an event loop, which goes on while a long text is read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from functools import partial
from typing import Any

from pagoda.engine.checked_tokenizer import CheckedTokenizer
from pagoda.engine.intake_threads import IntakeThreads
from pagoda.engine.vocabulary import Vocabulary
from pagoda.models.chat_options import DEFAULT_CHAT_OPTIONS, ChatOptions
from pagoda.models.tool_prompt import ToolFormat
from pagoda.request import SamplingParams

_MOST_BEGUN = 1024
"""Tokens at a prompt's end among which its last added one is looked for."""


class AsyncTokenizer:
    """`CheckedTokenizer`, called in threads beside the event loop."""

    def __init__(
        self, checked: CheckedTokenizer, vocabulary: Vocabulary, threads: IntakeThreads
    ) -> None:
        self._checked = checked
        self._vocabulary = vocabulary
        self._threads = threads

    @property
    def has_chat_template(self) -> bool:
        """Chats can be answered. Asking for it prepares the first of them."""
        return self._checked.tokenizer.has_chat_template

    @property
    def template_names(self) -> frozenset[str]:
        """What the chat template reads beside messages and tools."""
        return self._checked.tokenizer.template_names

    @property
    def chat_template(self) -> str:
        """The text of the chat template; empty where there is none."""
        return self._checked.tokenizer.chat_template

    def token_id(self, token: str) -> int | None:
        """The id of the token that is written so in the vocabulary; None where there is none."""
        return self._checked.tokenizer.token_id(token)

    def begun(self, prompt_token_ids: Sequence[int], beside: frozenset[int]) -> str:
        """The text behind the last added token that is none of those `beside`: what the prompt
        says of the answer already, or its end.

        Names of roles are added tokens, special or not, so what a user says is not among it.
        """
        added, begun = self._vocabulary.added_ids - beside, []
        for token_id in reversed(prompt_token_ids[-_MOST_BEGUN:]):
            if token_id in added:
                break
            begun.append(self._vocabulary.token_bytes(token_id))
        return b"".join(reversed(begun)).decode("utf-8", "replace")

    @property
    def tool_format(self) -> ToolFormat:
        """The form in which the model calls tools that it was told of."""
        return self._checked.tokenizer.tool_format

    async def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] = (),
        options: ChatOptions = DEFAULT_CHAT_OPTIONS,
        *,
        tenant: str,
        to_answer: bool = True,
    ) -> list[int]:
        """See `CheckedTokenizer.chat`; tenants take turns, here and in what follows."""
        size = self._checked.num_characters(messages)
        chat = partial(self._checked.chat, to_answer=to_answer)
        return await self._threads.run(tenant, size, chat, messages, tools, options)

    async def prompt(self, text: str, *, tenant: str) -> Sequence[int]:
        """See `CheckedTokenizer.prompt`."""
        return await self._threads.run(tenant, len(text), self._checked.prompt, text)

    async def encode(self, text: str, add_special_tokens: bool = True, *, tenant: str) -> list[int]:
        """See `CheckedTokenizer.encode`."""
        encode = self._checked.encode
        return await self._threads.run(tenant, len(text), encode, text, add_special_tokens)

    async def decode(self, token_ids: Sequence[int], field: str = "tokens", *, tenant: str) -> str:
        """See `CheckedTokenizer.decode`."""
        size, decode = len(token_ids), self._checked.decode
        return await self._threads.run(tenant, size, decode, token_ids, field)

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of its UTF-8, whole characters or parts of one."""
        return self._vocabulary.token_bytes(token_id)

    def text_bytes(
        self, params: SamplingParams, shown_ids: Set[int] = frozenset()
    ) -> Callable[[int], bytes]:
        """See `Vocabulary.text_bytes`."""
        return self._vocabulary.text_bytes(params, shown_ids)

    @property
    def special_ids(self) -> frozenset[int]:
        """Tokens that steer rather than speak."""
        return self._vocabulary.special_ids

    def token_text(self, token_id: int) -> str:
        """What one token of the vocabulary stands for, alone."""
        return self._vocabulary.token_text(token_id)
