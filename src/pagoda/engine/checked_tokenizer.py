"""A model's tokenizer behind checks: what cannot fit, or is no token, is refused by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from numbers import Integral
from typing import Any

from pagoda.engine.long_text import is_far_too_long
from pagoda.errors import ContextLengthError, InvalidRequestError
from pagoda.models.chat_options import DEFAULT_CHAT_OPTIONS, ChatOptions
from pagoda.models.tokenizer import Tokenizer
from pagoda.request import DEFAULT_REQUEST_OPTIONS, RequestOptions
from pagoda.truncation import truncated

MOST_CHARACTERS_PER_TOKEN = 100
"""A token stands for a bounded number of characters, and no vocabulary's average is near this."""
_MOST_PROMPTS = 8
"""How many times the model's length a prompt may have before it is cut, or a text that is tokenised
and not answered."""


class CheckedTokenizer:
    """Text, chats and token ids of callers, within one model's limits. Any thread may call it."""

    def __init__(self, tokenizer: Tokenizer, *, vocab_size: int, max_model_len: int) -> None:
        """`vocab_size` counts the model's logits, which may be more than the tokenizer's tokens."""
        self.tokenizer = tokenizer
        self.max_model_len = max_model_len
        self._vocab_size = vocab_size
        self._most_tokens = _MOST_PROMPTS * max_model_len

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text, which may be some times as long as a prompt.

        Raises `InvalidRequestError` naming `prompt`.
        """
        self._check_text("prompt", text, self._most_tokens)
        check = partial(self._check_at_most, "prompt")
        return self.tokenizer.encode(text, add_special_tokens, check_count=check)

    def decode(self, token_ids: Sequence[int], field: str = "tokens") -> str:
        """The text of token ids, special tokens included.

        Raises `InvalidRequestError` naming `field`, also for more than `encode` returns.
        """
        self._check_at_most(field, len(token_ids))
        return self.tokenizer.decode(self.check_ids(field, token_ids), skip_special_tokens=False)

    def num_characters(self, messages: Sequence[Mapping[str, Any]]) -> int:
        """Of all that is said in a conversation, as far as it is one."""
        if not isinstance(messages, Sequence):
            return 0
        contents = (each.get("content") for each in messages if isinstance(each, Mapping))
        return sum(len(content) for content in contents if isinstance(content, str))

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] = (),
        options: ChatOptions = DEFAULT_CHAT_OPTIONS,
        *,
        to_answer: bool = True,
    ) -> list[int]:
        """Token ids of a conversation, up to where the model is to answer, perhaps by a tool. One
        that is not `to_answer` may be as long as a text for `encode`.

        Raises `InvalidRequestError` naming `messages`, before a text that cannot fit is tokenised.
        """
        may_be_long = options.truncation is not None or not to_answer
        self._check_messages(messages, may_be_long)
        token_ids = self.tokenizer.chat(
            messages,
            tools,
            options,
            check_text=partial(self._check_prompt_text, "messages", may_be_long),
            check_count=partial(self._check_count, "messages", may_be_long),
        )
        token_ids = [*truncated(token_ids, options.truncation, self.max_model_len)]
        self._check_count("messages", not to_answer, len(token_ids))
        return token_ids

    def prompt(
        self, prompt: str | Sequence[int], options: RequestOptions = DEFAULT_REQUEST_OPTIONS
    ) -> tuple[int, ...]:
        """Token ids of a prompt that is text or token ids already: at least one, and not too many.

        Raises `InvalidRequestError` naming `prompt`.
        """
        encoded: Sequence[int]
        if isinstance(prompt, str):
            may_be_long = options.truncation is not None
            self._check_prompt_text("prompt", may_be_long, prompt)
            check = partial(self._check_count, "prompt", may_be_long)
            encoded = self.tokenizer.encode(prompt, options.add_special_tokens, check_count=check)
        else:
            encoded = prompt
        limit = "must be text or a list of token ids"
        if isinstance(prompt, bytes | bytearray):  # whole numbers, and not those that were meant
            raise InvalidRequestError("prompt", prompt, limit)
        try:
            token_ids = tuple(truncated(encoded, options.truncation, self.max_model_len))
        except TypeError:
            raise InvalidRequestError("prompt", prompt, limit) from None
        if not token_ids:
            raise InvalidRequestError("prompt", prompt, "must have at least one token")
        self._check_length("prompt", len(token_ids))
        return self.check_ids("prompt", token_ids)

    def check_ids(self, field: str, token_ids: Sequence[int]) -> tuple[int, ...]:
        """Token ids, NumPy's among them, as Python's whole numbers.

        Raises `InvalidRequestError` naming `field` unless each is one of the model's tokens.
        """
        limit = f"token ids are whole numbers from 0 to {self._vocab_size - 1}"
        if not set(map(type, token_ids)) <= {int}:
            for token_id in token_ids:
                if isinstance(token_id, bool) or not isinstance(token_id, Integral):
                    raise InvalidRequestError(field, token_id, limit)
        plain = tuple(map(int, token_ids))
        for token_id in plain:
            if not 0 <= token_id < self._vocab_size:
                raise InvalidRequestError(field, token_id, limit)
        return plain

    def _check_count(self, field: str, may_be_long: bool, num_tokens: int) -> None:
        """Refuse tokens that cannot fit before they are copied."""
        check = self._check_at_most if may_be_long else self._check_length
        check(field, num_tokens)

    def _check_length(self, field: str, num_tokens: int) -> None:
        if num_tokens >= self.max_model_len:
            raise ContextLengthError(
                field,
                f"{num_tokens} tokens",
                f"at most {self.max_model_len - 1}, since an answer has at least one",
                max_model_len=self.max_model_len,
                requested=f"{num_tokens + 1} tokens ({num_tokens} in the {field}, 1 in the "
                f"completion)",
            )

    def _check_at_most(self, field: str, num_tokens: int) -> None:
        if num_tokens > self._most_tokens:
            raise self._far_too_large(field, f"{num_tokens} tokens")

    def _check_messages(self, messages: Sequence[Mapping[str, Any]], may_be_long: bool) -> None:
        """Refuse messages that cannot fit before a template puts them together.

        Many may be one and the same text, so that a short request stands for a long prompt.
        """
        if not isinstance(messages, Sequence):
            return
        self._check_count("messages", may_be_long, len(messages))  # each is a token at least
        self._check_characters("messages", self.num_characters(messages))

    def _check_prompt_text(self, field: str, may_be_long: bool, text: str) -> None:
        """Refuse text that cannot fit before all of it is tokenised."""
        self._check_text(field, text, self._most_tokens if may_be_long else self.max_model_len)

    def _check_text(self, field: str, text: str, most_tokens: int) -> None:
        """Refuse text of far more tokens than `most_tokens`."""
        self._check_characters(field, len(text))
        if not is_far_too_long(text, most_tokens, self.tokenizer.count):
            return
        value = f"{len(text)} characters"
        if most_tokens == self._most_tokens:
            raise self._far_too_large(field, value)
        raise self._too_large(field, value, f"at most {most_tokens} tokens")

    def _check_characters(self, field: str, num: int) -> None:
        most = MOST_CHARACTERS_PER_TOKEN * self.max_model_len
        if num > most:
            raise self._too_large(field, f"{num} characters", f"at most {most}")

    def _far_too_large(self, field: str, value: str) -> InvalidRequestError:
        limit = f"at most {self._most_tokens} tokens, {_MOST_PROMPTS} times the model's length"
        return InvalidRequestError(field, value, limit)

    def _too_large(self, field: str, value: str, limit: str) -> ContextLengthError:
        return ContextLengthError(
            field,
            value,
            limit,
            max_model_len=self.max_model_len,
            requested=f"more ({value} in the {field})",
        )
