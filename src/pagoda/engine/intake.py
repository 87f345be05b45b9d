"""The door: what a caller gives becomes a checked `Request`, or is refused by name."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace

from pagoda.engine.checked_tokenizer import CheckedTokenizer
from pagoda.engine.grammar import Grammar, Grammars
from pagoda.engine.retention_rules import RetentionRules
from pagoda.errors import ContextLengthError, InvalidRequestError
from pagoda.limits import Real
from pagoda.models.tokenizer import Tokenizer
from pagoda.request import DEFAULT_REQUEST_OPTIONS, Request, RequestOptions, SamplingParams

_TIMEOUT = Real(0.0, math.inf)


def require_params(params: object) -> None:
    """Raises `InvalidRequestError` naming `sampling_params` for anything else."""
    if not isinstance(params, SamplingParams):
        raise InvalidRequestError("sampling_params", params, "must be a SamplingParams")


def require_options(options: object) -> None:
    """Raises `InvalidRequestError` naming `options` for anything else."""
    if not isinstance(options, RequestOptions):
        raise InvalidRequestError("options", options, "must be a RequestOptions")


def require_request_id(request_id: object) -> None:
    """Raises `InvalidRequestError` naming `request_id` for what no request can be called."""
    if not isinstance(request_id, str) or not request_id:
        raise InvalidRequestError("request_id", request_id, "must be a string, not empty")


def require_timeout(timeout_s: object) -> None:
    """Raises `InvalidRequestError` naming `timeout_s` for what is no time."""
    if timeout_s is not None:
        _TIMEOUT.check("timeout_s", timeout_s)


class Intake:
    """Checks requests against one model. Keeps no requests, so any thread may ask it."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        vocab_size: int,
        max_model_len: int,
        seed: int,
        retention: RetentionRules,
    ) -> None:
        self.tokenizer = CheckedTokenizer(
            tokenizer, vocab_size=vocab_size, max_model_len=max_model_len
        )
        self._max_model_len = max_model_len
        self._retention = retention
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
        self._retention.check(options.kv_retention)
        token_ids = self.tokenizer.prompt(prompt, options)
        if options.max_tokens_field is not None:
            self._check_max_tokens(options.max_tokens_field, sampling.max_tokens, len(token_ids))
        sampling = self._with_bad_words(sampling)
        self._check_sampled_ids(sampling)
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
        """More than the prompt leaves is taken, and ends earlier; more than can ever be is not."""
        if max_tokens is not None and max_tokens > self._max_model_len:
            total = num_prompt_tokens + max_tokens
            raise ContextLengthError(
                field,
                max_tokens,
                f"at most {self._max_model_len}",
                max_model_len=self._max_model_len,
                requested=f"{total} tokens ({num_prompt_tokens} in the prompt, {max_tokens} in "
                f"the completion)",
            )

    def _check_sampled_ids(self, sampling: SamplingParams) -> None:
        check = self.tokenizer.check_ids
        check("stop_token_ids", sampling.stop_token_ids)
        check("logit_bias", tuple(sampling.logit_bias))
        check("allowed_token_ids", sampling.allowed_token_ids or ())
        for token_ids in sampling.bad_words_ids:
            check("bad_words_ids", token_ids)
        banned = {token_ids[0] for token_ids in sampling.bad_words_ids if len(token_ids) == 1}
        if sampling.allowed_token_ids and banned.issuperset(sampling.allowed_token_ids):
            limit = "bad_words leave none of them"
            raise InvalidRequestError("allowed_token_ids", sampling.allowed_token_ids, limit)

    def _with_bad_words(self, sampling: SamplingParams) -> SamplingParams:
        if not sampling.bad_words:
            return sampling
        found = dict.fromkeys(sampling.bad_words_ids)
        for word in sampling.bad_words:
            found |= dict.fromkeys(self._spellings(word))
        return replace(sampling, bad_words_ids=tuple(found))

    def _spellings(self, word: str) -> Iterator[tuple[int, ...]]:
        """The tokens of a word at a text's start, and those of it as a new word behind a space."""
        encode = self.tokenizer.tokenizer.encode
        alone = tuple(encode(word, add_special_tokens=False))
        behind = tuple(encode(" " + word, add_special_tokens=False))
        if alone:
            yield alone
        # Where the space is a token of its own, the ones behind it are those of the word alone.
        if behind[len(behind) - len(alone) :] != alone:
            yield behind
