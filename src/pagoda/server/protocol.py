"""What clients send: the fields of OpenAI's requests for answers, with vLLM's extra fields.

Types are checked strictly here; ranges are checked once, by `SamplingParams`, so that HTTP, the
command line and the library refuse the same values with the same words. A field that is absent or
null takes the default of `SamplingParams`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar

from pydantic import Field

from pagoda.cache_hint import cache_hint_of
from pagoda.errors import InvalidRequestError
from pagoda.request import (
    MAX_ALLOWED_TOKEN_IDS,
    MAX_BAD_WORDS,
    MAX_LOGIT_BIASES,
    MAX_STOPS,
    RequestOptions,
    SamplingParams,
)
from pagoda.server.answer_format import AnswerFormat
from pagoda.server.body import Many, ManyNamed, Text
from pagoda.server.inner_body import InnerBody
from pagoda.server.keys import Holder
from pagoda.server.list_bounds import at_most
from pagoda.server.model_body import ModelBody
from pagoda.server.numbers import LaxInt
from pagoda.server.sampling_fields import SAMPLING_FIELDS, with_sampling_fields
from pagoda.server.telling import Telling
from pagoda.truncation import MOST_ROOM, Truncation

_PRIORITY_LIMIT = 2**63 - 1
_TOKEN_ID = re.compile(r"0|[1-9][0-9]{0,18}", re.ASCII)
_LISTS = ("stop", "stop_token_ids", "allowed_token_ids", "bad_words")


class StreamOptions(InnerBody):
    """`include_usage` adds a last chunk that carries the usage so far, `continuous_usage_stats`
    puts it into every chunk."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None
    """OpenAI's, for secrets that the lengths of chunks tell. Changes nothing: none are padded."""


@with_sampling_fields
class GenerationRequest(ModelBody, AnswerFormat):
    """The fields that completions and chat completions share.

    Those of `SamplingParams` that are numbers or switches come with the decorator; declared here
    are the ones that the server reads itself or that have a form of their own.
    """

    n: LaxInt | None = None
    prompt_logprobs: LaxInt | None = None
    logit_bias: Annotated[ManyNamed[str, float], at_most(MAX_LOGIT_BIASES)] | None = None
    stop: Text | Annotated[Many[Text], at_most(MAX_STOPS)] | None = None
    stop_token_ids: Annotated[Many[int], at_most(MAX_STOPS)] | None = None
    allowed_token_ids: Annotated[Many[int], at_most(MAX_ALLOWED_TOKEN_IDS)] | None = None
    bad_words: Annotated[Many[Text], at_most(MAX_BAD_WORDS)] | None = None
    max_tokens: LaxInt | None = None
    n_predict: LaxInt | None = None
    """llama.cpp's name for `max_tokens`; -1 is as many as fit."""
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    priority: Annotated[LaxInt, Field(ge=-_PRIORITY_LIMIT, le=_PRIORITY_LIMIT)] | None = None
    cache_salt: Text | None = None
    session_id: Text | None = None
    """The conversation that the request belongs to, for `/sessions`."""
    kv_retention: Text | None = None
    """Pagoda's own: which tokens stay in the cache, by a name of `--kv-retention`."""
    cache_hint: Text | None = None
    """Pagoda's own: pin, session or none, how long its blocks are to stay in the cache."""
    explain_cache: bool | None = None
    """Pagoda's own: `usage.cache_explanation` says why no more of the prompt was in the cache."""
    add_special_tokens: bool | None = None
    """vLLM's: whether the tokenizer adds its own."""
    truncate_prompt_tokens: LaxInt | None = None
    """vLLM's: only so many tokens at the prompt's end; -1 is as many as leave room."""
    return_token_ids: bool | None = None
    """vLLM's: token ids beside the text."""
    return_tokens_as_token_ids: bool | None = None
    """vLLM's: tokens with log-probabilities are told as `token_id:17`."""
    max_tokens_fields: ClassVar[tuple[str, ...]] = ("max_tokens", "n_predict")
    """Fields that say how long an answer may be; the first that is given counts."""
    lengths_beside: ClassVar[Mapping[str, str]] = {"n_predict": "-1 for as many as fit"}
    """What these fields take beside numbers of tokens."""

    @property
    def max_tokens_field(self) -> str | None:
        """The field that says how long an answer may be; without one it is as long as it fits."""
        given = (name for name in self.max_tokens_fields if getattr(self, name) is not None)
        return next(given, None)

    @property
    def prompt_truncation(self) -> Truncation | None:
        """How a prompt that may be too long is cut. Raises `InvalidRequestError`."""
        most = self.truncate_prompt_tokens
        if most is None:
            return None
        if most != -1:
            return Truncation(most)
        field = self.max_tokens_field
        room = getattr(self, field) if field else 1
        return Truncation(room=min(max(1, room), MOST_ROOM))

    def telling(self) -> Telling:
        """What the answer tells beside what was said."""
        stream = self.stream_options or StreamOptions()
        return Telling(
            usage_at_end=bool(stream.include_usage or self.explain_cache),
            usage_in_chunks=bool(stream.continuous_usage_stats),
            token_ids=bool(self.return_token_ids),
            tokens_as_ids=bool(self.return_tokens_as_token_ids),
            cache_explanation=bool(self.explain_cache),
            ignored=self.ignored(),
        )

    def check(self, served_models: Sequence[str]) -> None:
        super().check(served_models)
        if self.stream_options is not None and not self.stream:
            given = self.stream_options.model_dump()
            raise InvalidRequestError("stream_options", given, "is allowed with stream=true only")

    def request_options(self, holder: Holder) -> RequestOptions:
        """What this body says beside its prompts and its sampling, as a request of `holder`.

        Raises `InvalidRequestError` for a tenant that wants to go before others.
        """
        priority = self.priority or 0
        if priority < 0 and not holder.is_operator:
            limit = "0 or more with this key: only an operator goes before others"
            raise InvalidRequestError("priority", priority, limit)
        return RequestOptions(
            priority=priority,
            tenant=holder.tenant,
            cache_salt=self.cache_salt or "",
            session_id=self.session_id,
            kv_retention=self.kv_retention,
            cache_hint=cache_hint_of(self.cache_hint),
            max_tokens_field=self.max_tokens_field,
            add_special_tokens=self.add_special_tokens is not False,
            truncation=self.prompt_truncation,
        )

    def sampling_with(self, max_model_len: int, **chosen: Any) -> SamplingParams:
        """The sampling parameters of this body and of `chosen`, which comes first.

        Raises `InvalidRequestError` for a value out of range, by the name that it was given under.
        """
        field = self.max_tokens_field
        if field is not None:
            chosen = {"max_tokens": self._max_tokens(field), **chosen}
        try:
            return self._sampling_with(chosen)
        except InvalidRequestError as error:
            if error.field != "max_tokens" or field is None:
                raise
            beside = self.lengths_beside.get(field)
            limit = f"must be between 1 and {max_model_len}" + (f", or {beside}" if beside else "")
            raise InvalidRequestError(field, error.value, limit) from None

    def _max_tokens(self, field: str) -> int | None:
        """The value of one of `max_tokens_fields`; None is as many as fit."""
        value: int = getattr(self, field)
        return None if field == "n_predict" and value == -1 else value

    def _sampling_with(self, chosen: dict[str, Any]) -> SamplingParams:
        fields = {name: getattr(self, name) for name in (*SAMPLING_FIELDS, *_LISTS)}
        if self.logit_bias is not None:
            fields["logit_bias"] = {_token_id(key): bias for key, bias in self.logit_bias.items()}
        fields["structured_outputs"] = self.structured()
        given = {name: value for name, value in fields.items() if value is not None}
        return SamplingParams(**{**given, **chosen})


def _token_id(key: str) -> int:
    """One spelling of each: of two keys for a token one would hide the other."""
    if _TOKEN_ID.fullmatch(key):
        return int(key)
    raise InvalidRequestError("logit_bias", key, "keys must be token ids, as JSON writes numbers")
