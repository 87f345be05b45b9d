"""A model's tokenizer behind checks: what cannot fit, or is no token, is refused by name."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pagoda.errors import ContextLengthError, InvalidRequestError
from pagoda.models.chat_options import DEFAULT_CHAT_OPTIONS, ChatOptions
from pagoda.models.tokenizer import Tokenizer

_MOST_CHARACTERS_PER_TOKEN = 100
"""A token stands for a bounded number of characters, and no vocabulary's average is near this."""


class CheckedTokenizer:
    """Text, chats and token ids of callers, within one model's limits. Any thread may call it."""

    def __init__(self, tokenizer: Tokenizer, *, vocab_size: int, max_model_len: int) -> None:
        """`vocab_size` counts the model's logits, which may be more than the tokenizer's tokens."""
        self.tokenizer = tokenizer
        self.max_model_len = max_model_len
        self._vocab_size = vocab_size

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text. Raises `InvalidRequestError` naming `prompt`."""
        self._check_text("prompt", len(text))
        return self.tokenizer.encode(text, add_special_tokens)

    def decode(self, token_ids: Sequence[int], field: str = "tokens") -> str:
        """The text of token ids, special tokens included.

        Raises `InvalidRequestError` naming `field`.
        """
        self.check_ids(field, token_ids)
        return self.tokenizer.decode(token_ids, skip_special_tokens=False)

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] = (),
        options: ChatOptions = DEFAULT_CHAT_OPTIONS,
    ) -> list[int]:
        """Token ids of a conversation, up to where the model is to answer, perhaps by a tool.

        Raises `InvalidRequestError` naming `messages`, before a text that cannot fit is tokenised.
        """
        if isinstance(messages, Sequence):
            contents = (m.get("content") for m in messages if isinstance(m, Mapping))
            self._check_text("messages", sum(len(c) for c in contents if isinstance(c, str)))
        if tools:
            self._check_text("tools", len(json.dumps(tools)))
        token_ids = self.tokenizer.chat(messages, tools, options)
        self._check_length("messages", len(token_ids))
        return token_ids

    def prompt(self, prompt: str | Sequence[int]) -> tuple[int, ...]:
        """Token ids of a prompt that is text or token ids already: at least one, and not too many.

        Raises `InvalidRequestError` naming `prompt`.
        """
        given: Sequence[int] = self.encode(prompt) if isinstance(prompt, str) else prompt
        try:
            token_ids = tuple(given)
        except TypeError:
            limit = "must be text or a list of token ids"
            raise InvalidRequestError("prompt", prompt, limit) from None
        if not token_ids:
            raise InvalidRequestError("prompt", prompt, "must have at least one token")
        self._check_length("prompt", len(token_ids))
        self.check_ids("prompt", token_ids)
        return token_ids

    def check_ids(self, field: str, token_ids: Sequence[int]) -> None:
        """Raises `InvalidRequestError` naming `field` unless each is one of the model's tokens."""
        limit = f"token ids are whole numbers from 0 to {self._vocab_size - 1}"
        for token_id in token_ids:
            if isinstance(token_id, bool) or not isinstance(token_id, int):
                raise InvalidRequestError(field, token_id, limit)
            if not 0 <= token_id < self._vocab_size:
                raise InvalidRequestError(field, token_id, limit)

    def _check_length(self, field: str, num_tokens: int) -> None:
        if num_tokens >= self.max_model_len:
            raise ContextLengthError(
                field,
                f"{num_tokens} tokens",
                f"at most {self.max_model_len - 1}, one less than the model's maximum length "
                f"of {self.max_model_len} tokens",
            )

    def _check_text(self, field: str, num_characters: int) -> None:
        """Refuse text that cannot fit before spending time on tokenising it."""
        most = _MOST_CHARACTERS_PER_TOKEN * self.max_model_len
        if num_characters > most:
            raise ContextLengthError(field, f"{num_characters} characters", f"at most {most}")
