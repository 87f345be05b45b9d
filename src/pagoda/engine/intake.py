"""The door: what a caller gives becomes a checked `Request`, or is refused by name."""

from __future__ import annotations

import random
from collections.abc import Sequence

from pagoda.engine.checked_tokenizer import CheckedTokenizer
from pagoda.engine.grammar import Grammar, Grammars
from pagoda.errors import ContextLengthError
from pagoda.models.tokenizer import Tokenizer
from pagoda.request import DEFAULT_REQUEST_OPTIONS, Request, RequestOptions, SamplingParams


class Intake:
    """Checks requests against one model. Keeps no requests, so any thread may ask it."""

    def __init__(
        self, tokenizer: Tokenizer, *, vocab_size: int, max_model_len: int, seed: int
    ) -> None:
        self.tokenizer = CheckedTokenizer(
            tokenizer, vocab_size=vocab_size, max_model_len=max_model_len
        )
        self._max_model_len = max_model_len
        self._eos_token_ids = tokenizer.eos_token_ids
        self._seeds = random.Random(seed)
        self._grammars = Grammars(tokenizer, vocab_size)

    def request(
        self,
        request_id: str,
        prompt: str | Sequence[int],
        sampling: SamplingParams,
        options: RequestOptions = DEFAULT_REQUEST_OPTIONS,
        *,
        seed: int | None = None,
    ) -> Request:
        """`prompt` is text or token ids; `seed` is one that was drawn before.

        Raises `InvalidRequestError` naming the field.
        """
        token_ids = self.tokenizer.prompt(prompt)
        if options.max_tokens_field is not None:
            self._check_max_tokens(options.max_tokens_field, sampling.max_tokens, len(token_ids))
        self.tokenizer.check_ids("stop_token_ids", sampling.stop_token_ids)
        self.tokenizer.check_ids("logit_bias", tuple(sampling.logit_bias))
        return Request(
            request_id=request_id,
            prompt_token_ids=token_ids,
            sampling=sampling,
            eos_token_ids=self._eos_token_ids,
            options=options,
            seed=self.draw_seed(sampling) if seed is None else seed,
            grammar=self._grammar(sampling, options),
        )

    def prepare_grammars(self) -> None:
        """Do what the first constrained answer would wait for."""
        self._grammars.prepare()

    def draw_seed(self, sampling: SamplingParams) -> int:
        """The caller's seed, or the engine's next one: calls in the same order give the same."""
        return self._seeds.getrandbits(63) if sampling.seed is None else sampling.seed

    def _grammar(self, sampling: SamplingParams, options: RequestOptions) -> Grammar | None:
        wanted = sampling.structured_outputs
        if wanted is None:
            return None
        return self._grammars.compile(wanted, tenant=options.tenant, cache_salt=options.cache_salt)

    def _check_max_tokens(self, field: str, max_tokens: int | None, num_prompt_tokens: int) -> None:
        most = self._max_model_len - num_prompt_tokens
        if max_tokens is not None and max_tokens > most:
            limit = (
                f"at most {most}, what the prompt's {num_prompt_tokens} tokens leave of the "
                f"model's maximum length of {self._max_model_len} tokens"
            )
            raise ContextLengthError(field, max_tokens, limit)
