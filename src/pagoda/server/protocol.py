"""What clients send: the bodies of OpenAI's requests, with vLLM's extra fields.

Types are checked strictly here; ranges are checked once, by `SamplingParams`, so that HTTP, the
command line and the library refuse the same values with the same words. A field that is absent or
null takes the default of `SamplingParams`.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from pagoda.errors import InvalidRequestError
from pagoda.request import RequestOptions, SamplingParams
from pagoda.server.answer_format import AnswerFormat
from pagoda.server.body import Body, Many, Text
from pagoda.server.errors import UnknownModelError
from pagoda.server.keys import Holder
from pagoda.server.messages import Message
from pagoda.server.sampling_fields import SAMPLING_FIELDS, with_sampling_fields
from pagoda.server.tools import Tool, ToolChoice, ToolUse

MAX_PROMPTS = 128
MAX_CHOICES = 1024
"""In one request, of all prompts together."""
_PRIORITY_LIMIT = 2**63 - 1


class StreamOptions(BaseModel):
    """`include_usage` adds a last chunk that carries the usage."""

    model_config = ConfigDict(strict=True)

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    """vLLM's: usage in every chunk. Not covered."""


class _ModelBody(Body):
    """A body that may name the model."""

    model: Text | None = None

    def check(self, served_model: str) -> None:
        """Raises `InvalidRequestError` for what types alone cannot tell.

        That is an `UnknownModelError` where another model than the served one is asked for.
        """
        self.refuse_uncovered()
        if self.model not in (None, served_model):
            raise UnknownModelError(str(self.model), served_model)


@with_sampling_fields
class GenerationRequest(_ModelBody, AnswerFormat):
    """The fields that completions and chat completions share.

    Those of `SamplingParams` that are numbers or switches come with the decorator; declared here
    are the ones that the server reads itself or that have a form of their own.
    """

    n: int | None = None
    logit_bias: dict[str, float] | None = None
    max_tokens: int | None = None
    stop: Text | Many[Text] | None = None
    stop_token_ids: Many[int] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    priority: Annotated[int, Field(ge=-_PRIORITY_LIMIT, le=_PRIORITY_LIMIT)] | None = None
    cache_salt: Text | None = None
    user: Text | None = None
    add_special_tokens: bool | None = None
    """vLLM's: whether the tokenizer adds its own. The default of each route alone is covered."""
    adds_special_tokens: ClassVar[bool]

    @property
    def include_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def max_tokens_field(self) -> str | None:
        """The field that says how long an answer may be; without one it is as long as it fits."""
        return None if self.max_tokens is None else "max_tokens"

    def check(self, served_model: str) -> None:
        super().check(served_model)
        if self.stream_options is not None and not self.stream:
            given = self.stream_options.model_dump()
            raise InvalidRequestError("stream_options", given, "is allowed with stream=true only")
        if self.stream_options is not None and self.stream_options.continuous_usage_stats:
            given = {"continuous_usage_stats": True}
            raise InvalidRequestError("stream_options", given, "is not covered")
        if self.add_special_tokens not in (None, self.adds_special_tokens):
            raise InvalidRequestError(
                "add_special_tokens", self.add_special_tokens, "is not covered"
            )

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
            max_tokens_field=self.max_tokens_field,
        )

    def sampling_with(self, **chosen: Any) -> SamplingParams:
        """The sampling parameters of this body and of `chosen`, which comes first.

        Raises `InvalidRequestError` for a value out of range.
        """
        fields = {name: getattr(self, name) for name in SAMPLING_FIELDS}
        fields |= {"stop": self.stop, "stop_token_ids": self.stop_token_ids}
        if self.logit_bias is not None:
            fields["logit_bias"] = {_token_id(key): bias for key, bias in self.logit_bias.items()}
        fields["structured_outputs"] = self.structured()
        given = {name: value for name, value in fields.items() if value is not None}
        return SamplingParams(**{**given, **chosen})


class CompletionRequest(GenerationRequest):
    """The body of `/v1/completions`."""

    adds_special_tokens = True
    prompt: Text | Many[Text] | Many[int] | Many[Many[int]]
    logprobs: int | None = None
    echo: bool | None = None
    """The answer begins with the prompt, and so do its log-probabilities."""

    def check(self, served_model: str) -> None:
        super().check(served_model)
        count = len(self.prompts())
        if count > MAX_PROMPTS:
            raise InvalidRequestError("prompt", f"{count} prompts", f"at most {MAX_PROMPTS}")
        if count * (self.n or 1) > MAX_CHOICES:
            limit = f"at most {MAX_CHOICES} choices for all {count} prompts together"
            raise InvalidRequestError("n", self.n, limit)

    def prompts(self) -> list[str | list[int]]:
        """Each prompt by itself, as text or as token ids.

        Raises `InvalidRequestError` when there is none.
        """
        if self.prompt == []:
            raise InvalidRequestError("prompt", [], "must hold at least one prompt or token id")
        if isinstance(self.prompt, str):
            return [self.prompt]
        if isinstance(self.prompt[0], int):
            return [[item for item in self.prompt if isinstance(item, int)]]
        return [item for item in self.prompt if not isinstance(item, int)]

    @property
    def wants_prompt_alone(self) -> bool:
        """An echo that nothing follows, as is asked for to score a text."""
        return bool(self.echo) and self.max_tokens == 0

    def sampling(self) -> SamplingParams:
        """Raises `InvalidRequestError` for a value out of range."""
        chosen: dict[str, Any] = {"logprobs": self.logprobs}
        if self.echo and self.logprobs is not None:
            chosen["prompt_logprobs"] = self.logprobs
        if self.wants_prompt_alone:
            chosen |= {"max_tokens": 1, "prompt_alone": True}  # computed, but not told
        return self.sampling_with(**chosen)


class TokenizeRequest(_ModelBody):
    """The body of `/tokenize`: a prompt, or the messages of a chat."""

    prompt: Text | None = None
    messages: Many[Message] | None = None
    tools: Many[Tool] | None = None
    add_special_tokens: bool = True
    return_token_strs: bool = False

    def check(self, served_model: str) -> None:
        super().check(served_model)
        if (self.prompt is None) == (self.messages is None):
            raise InvalidRequestError("prompt", self.prompt, "or messages: exactly one of the two")
        for message in self.messages or []:
            message.refuse_uncovered()

    def template_messages(self) -> list[dict[str, Any]]:
        return [message.for_template() for message in self.messages or []]

    def described_tools(self) -> list[dict[str, Any]]:
        """Raises `InvalidRequestError` for tools that will not do."""
        return ToolUse.of(self.tools, None, None).described


class DetokenizeRequest(_ModelBody):
    """The body of `/detokenize`."""

    tokens: Many[int]


class ChatCompletionRequest(GenerationRequest):
    """The body of `/v1/chat/completions`."""

    adds_special_tokens = False  # the chat template writes them
    messages: Many[Message]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: Many[Tool] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None

    def check(self, served_model: str) -> None:
        super().check(served_model)
        if not self.messages:
            raise InvalidRequestError("messages", [], "must hold at least one message")
        for message in self.messages:
            message.refuse_uncovered()
        if self.top_logprobs is not None and not self.logprobs:
            raise InvalidRequestError(
                "top_logprobs", self.top_logprobs, "is allowed with logprobs=true only"
            )

    def template_messages(self) -> list[dict[str, Any]]:
        return [message.for_template() for message in self.messages]

    def tool_use(self) -> ToolUse:
        """Raises `InvalidRequestError` for tools, or a choice among them, that will not do."""
        return ToolUse.of(self.tools, self.tool_choice, self.parallel_tool_calls)

    @property
    def max_tokens_field(self) -> str | None:
        """OpenAI's newer name goes before its older one."""
        if self.max_completion_tokens is not None:
            return "max_completion_tokens"
        return super().max_tokens_field

    def sampling(self) -> SamplingParams:
        """Without a limit the answer may grow up to the model's length.

        Raises `InvalidRequestError` for a value out of range.
        """
        field = self.max_tokens_field
        limit = None if field is None else getattr(self, field)
        logprobs = (self.top_logprobs or 0) if self.logprobs else None
        chosen = self._chosen_for_tools()
        try:
            return self.sampling_with(max_tokens=limit, logprobs=logprobs, **chosen)
        except InvalidRequestError as error:
            sent = {"max_tokens": field, "logprobs": "top_logprobs"}.get(error.field)
            if sent is None:
                raise
            raise InvalidRequestError(sent, error.value, error.limit) from None

    def _chosen_for_tools(self) -> dict[str, Any]:
        use, wanted = self.tool_use(), self.structured()
        call = use.constraint()
        if call is not None and wanted is not None:
            raise wanted.refuse("cannot be combined with a tool_choice that forces a call")
        if call is not None:
            return {"structured_outputs": call}
        # Some models write the tags around a call as special tokens.
        return {"skip_special_tokens": False} if use.is_free else {}


def _token_id(key: str) -> int:
    try:
        return int(key)
    except ValueError:
        raise InvalidRequestError("logit_bias", key, "keys must be token ids") from None
