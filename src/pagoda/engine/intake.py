"""The door: what a caller gives becomes a checked `Request`, or is refused by name."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from typing import Any

from pagoda.engine.grammar import Grammars
from pagoda.errors import ContextLengthError, InvalidRequestError
from pagoda.models.tokenizer import Tokenizer
from pagoda.request import Request, SamplingParams


class Intake:
    """Checks requests against one model. Keeps no requests, so any thread may ask it."""

    def __init__(
        self, tokenizer: Tokenizer, *, vocab_size: int, max_model_len: int, seed: int
    ) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._max_model_len = max_model_len
        self._seeds = random.Random(seed)
        self._grammars = Grammars(tokenizer, vocab_size)

    def request(
        self,
        request_id: str,
        prompt: str | Sequence[int],
        sampling: SamplingParams,
        *,
        priority: int = 0,
        tenant: str = "",
        cache_salt: str = "",
        seed: int | None = None,
        max_tokens_field: str | None = None,
    ) -> Request:
        """`prompt` is text or token ids; `seed` is one that was drawn before.

        Without `max_tokens_field` an answer ends at the model's length, however many tokens it may
        have; with it `max_tokens` is refused by that name where so many can never come.
        Raises `InvalidRequestError` naming the field.
        """
        token_ids = self._token_ids(prompt)
        if max_tokens_field is not None:
            self._check_room(max_tokens_field, sampling.max_tokens, len(token_ids))
        self._check_ids("stop_token_ids", sampling.stop_token_ids)
        self._check_ids("logit_bias", tuple(sampling.logit_bias))
        if isinstance(priority, bool) or not isinstance(priority, int):
            raise InvalidRequestError("priority", priority, "must be a whole number")
        for name, text in (("tenant", tenant), ("cache_salt", cache_salt)):
            if not isinstance(text, str):
                raise InvalidRequestError(name, text, "must be a string")
        wanted = sampling.structured_outputs
        return Request(
            request_id=request_id,
            prompt_token_ids=token_ids,
            sampling=sampling,
            eos_token_ids=self._tokenizer.eos_token_ids,
            priority=priority,
            tenant=tenant,
            cache_salt=cache_salt,
            seed=self.draw_seed(sampling) if seed is None else seed,
            grammar=None
            if wanted is None
            else self._grammars.compile(wanted, tenant=tenant, cache_salt=cache_salt),
        )

    def draw_seed(self, sampling: SamplingParams) -> int:
        """The caller's seed, or the engine's next one: calls in the same order give the same."""
        return self._seeds.getrandbits(63) if sampling.seed is None else sampling.seed

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text. Raises `InvalidRequestError` naming `prompt`."""
        self._check_text("prompt", len(text))
        return self._tokenizer.encode(text, add_special_tokens)

    def decode(self, token_ids: Sequence[int], field: str = "tokens") -> str:
        """The text of token ids, special tokens included.

        Raises `InvalidRequestError` naming `field`.
        """
        self._check_ids(field, token_ids)
        return self._tokenizer.decode(token_ids, skip_special_tokens=False)

    def chat(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()
    ) -> list[int]:
        """Token ids of a conversation, up to where the model is to answer, perhaps by a tool.

        Raises `InvalidRequestError` naming `messages`, before a text that cannot fit is tokenised.
        """
        if isinstance(messages, Sequence):
            contents = (m.get("content") for m in messages if isinstance(m, Mapping))
            self._check_text("messages", sum(len(c) for c in contents if isinstance(c, str)))
        if tools:
            self._check_text("tools", len(json.dumps(tools)))
        token_ids = self._tokenizer.chat(messages, tools=tools)
        self._check_length("messages", len(token_ids))
        return token_ids

    def _token_ids(self, prompt: str | Sequence[int]) -> tuple[int, ...]:
        if isinstance(prompt, str):
            given: Sequence[int] = self.encode(prompt)
        else:
            given = prompt
        try:
            token_ids = tuple(given)
        except TypeError:
            limit = "must be text or a list of token ids"
            raise InvalidRequestError("prompt", prompt, limit) from None
        if not token_ids:
            raise InvalidRequestError("prompt", prompt, "must have at least one token")
        self._check_length("prompt", len(token_ids))
        self._check_ids("prompt", token_ids)
        return token_ids

    def _check_length(self, name: str, num_tokens: int) -> None:
        if num_tokens >= self._max_model_len:
            raise ContextLengthError(
                name,
                f"{num_tokens} tokens",
                f"at most {self._max_model_len - 1}, one less than the model's maximum length "
                f"of {self._max_model_len} tokens",
            )

    def _check_room(self, name: str, max_tokens: int | None, num_prompt_tokens: int) -> None:
        most = self._max_model_len - num_prompt_tokens
        if max_tokens is not None and max_tokens > most:
            limit = (
                f"at most {most}, what the prompt's {num_prompt_tokens} tokens leave of the "
                f"model's maximum length of {self._max_model_len} tokens"
            )
            raise ContextLengthError(name, max_tokens, limit)

    def _check_text(self, name: str, num_characters: int) -> None:
        """Refuse text that cannot fit before spending time on tokenising it: a token stands for
        a bounded number of characters, and no vocabulary's average is near 100."""
        most = 100 * self._max_model_len
        if num_characters > most:
            raise ContextLengthError(name, f"{num_characters} characters", f"at most {most}")

    def _check_ids(self, name: str, token_ids: Sequence[int]) -> None:
        limit = f"token ids are whole numbers from 0 to {self._vocab_size - 1}"
        for token_id in token_ids:
            if isinstance(token_id, bool) or not isinstance(token_id, int):
                raise InvalidRequestError(name, token_id, limit)
            if not 0 <= token_id < self._vocab_size:
                raise InvalidRequestError(name, token_id, limit)
