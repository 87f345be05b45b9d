"""The bodies of `/v1/messages` and `/v1/messages/count_tokens`.

Fields that change nothing here are taken and ignored: `metadata`, `service_tier`,
`context_management` and whatever else is unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from pagoda.cache_hint import cache_hint_of
from pagoda.engine.closed_schema import closed
from pagoda.errors import InvalidRequestError
from pagoda.limits import Whole
from pagoda.models.chat_options import TemplateValue
from pagoda.request import MAX_STOPS, RequestOptions, SamplingParams
from pagoda.server.body import Many, Text
from pagoda.server.field_table import Ignored
from pagoda.server.keys import Holder
from pagoda.server.list_bounds import FewParts, at_most
from pagoda.server.messages_api.blocks import InputMessage, PlainBlock
from pagoda.server.messages_api.conversation import Conversation
from pagoda.server.messages_api.tools import OfferedTool, ToolChoice, tool_use
from pagoda.server.model_body import ModelBody
from pagoda.server.numbers import LaxFloat, LaxInt
from pagoda.server.template_chat import TemplateChat
from pagoda.server.tool_choice import MAX_TOOLS
from pagoda.server.tools import ToolUse
from pagoda.structured import StructuredOutputs

_MAX_TOKENS = Whole(0, 2**31 - 1)
"""More than the model's length is taken as what is left."""


class OutputFormat(BaseModel):
    """The schema that an answer follows."""

    model_config = ConfigDict(strict=True)

    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")

    def structured(self, field: str) -> StructuredOutputs:
        """The constraint, told about as `field`. Raises `InvalidRequestError`."""
        wanted = StructuredOutputs(json=self.schema_, field=field)  # bounds its depth as well
        return replace(wanted, json=closed(self.schema_, free_too=True))


class OutputConfig(BaseModel):
    """How an answer must look. `effort` is ignored."""

    model_config = ConfigDict(strict=True)

    format: OutputFormat | None = None


class ThinkingConfig(BaseModel):
    """Whether the model is to think, where its chat template lets that be said, and whether what it
    thinks is told. Its budget is ignored."""

    model_config = ConfigDict(strict=True)

    type: Literal["enabled", "adaptive", "disabled"]

    @property
    def template_kwargs(self) -> dict[str, TemplateValue]:
        """Under the names that chat templates have for it."""
        if self.type == "adaptive":
            return {}
        return dict.fromkeys(("enable_thinking", "thinking"), self.type == "enabled")


class ConversationBody(ModelBody):
    """What both bodies have: all that a prompt is made of."""

    looked_at = frozenset()  # of OpenAI's and vLLM's fields
    messages: FewParts[InputMessage]
    system: Text | FewParts[PlainBlock] | None = None
    tools: Annotated[Many[OfferedTool], at_most(MAX_TOOLS)] | None = None
    tool_choice: ToolChoice | None = None
    thinking: ThinkingConfig | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None
    """The older name of `output_config.format`."""
    mcp_servers: list[Any] | None = None
    container: Any = None

    def check(self, served_models: Sequence[str]) -> None:
        super().check(served_models)
        for name in ("mcp_servers", "container"):
            if getattr(self, name):
                raise InvalidRequestError(name, getattr(self, name), "is not covered")

    def template_chat(self) -> TemplateChat:
        """Raises `InvalidRequestError` for messages that cannot follow one another, and as
        `tool_use` does."""
        tools = self.tool_use.described
        # What a search has found may be described where it may not be called.
        told = Conversation.of(self.system, self.messages, self.tool_use.offered)
        options = told.options
        if self.thinking is not None:
            options = replace(options, template_kwargs=self.thinking.template_kwargs)
        return TemplateChat(told.messages, tools, options)

    @property
    def wants_thoughts(self) -> bool:
        """What the model thinks is told."""
        return self.thinking is not None and self.thinking.type != "disabled"

    @cached_property
    def tool_use(self) -> ToolUse:
        """Raises `InvalidRequestError` for tools, or a choice among them, that will not do."""
        return tool_use(self.tools, self.tool_choice)


class CountTokensBody(ConversationBody):
    """The body of `/v1/messages/count_tokens`."""


class MessagesBody(ConversationBody):
    """The body of `/v1/messages`."""

    max_tokens: LaxInt
    """0 computes the prompt alone, so that the cache has it."""
    stop_sequences: Annotated[Many[Text], at_most(MAX_STOPS)] | None = None
    stream: bool | None = None
    temperature: LaxFloat | None = None
    top_p: LaxFloat | None = None
    top_k: LaxInt | None = None
    session_id: Text | None = None
    """Pagoda's own: the conversation that the request belongs to, for `/sessions`."""
    kv_retention: Text | None = None
    """Pagoda's own: which tokens stay in the cache, by a name of `--kv-retention`."""
    cache_hint: Text | None = None
    """Pagoda's own: pin, session or none, how long its blocks are to stay in the cache."""

    @property
    def wants_prompt_alone(self) -> bool:
        return self.max_tokens == 0

    def ignored_stops(self) -> list[Ignored]:
        """What is asked for in vain where the answer must be a call."""
        return self.tool_use.ignored_stops(stop_sequences=self.stop_sequences)

    def sampling(self, max_model_len: int) -> SamplingParams:
        """Raises `InvalidRequestError` for a value out of range."""
        _MAX_TOKENS.check("max_tokens", self.max_tokens)
        names = ("temperature", "top_p", "top_k")
        fields: dict[str, Any] = {name: getattr(self, name) for name in names}
        fields["stop"] = self.stop_sequences
        given = {name: value for name, value in fields.items() if value is not None}
        chosen: dict[str, Any] = self.tool_use.sampling_fields(self._structured())
        chosen["max_tokens"] = self.max_tokens
        if self.wants_prompt_alone:
            chosen |= {"max_tokens": 1, "prompt_alone": True}  # computed, but not told
        try:
            return self.tool_use.without_stops(SamplingParams(**{**given, **chosen}))
        except InvalidRequestError as error:
            if error.field != "stop":
                raise
            raise InvalidRequestError("stop_sequences", error.value, error.limit) from None

    def request_options(self, holder: Holder) -> RequestOptions:
        """An answer that `max_tokens` would let grow further ends where the model's length does:
        agents ask for tens of thousands of tokens, whatever the model."""
        return RequestOptions(
            tenant=holder.tenant,
            session_id=self.session_id,
            kv_retention=self.kv_retention,
            cache_hint=cache_hint_of(self.cache_hint),
        )

    def _structured(self) -> StructuredOutputs | None:
        newer = None if self.output_config is None else self.output_config.format
        wanted = None if newer is None else newer.structured("output_config")
        if self.output_format is None:
            return wanted
        older = self.output_format.structured("output_format")
        if wanted is not None:
            raise older.refuse("cannot be combined with output_config.format")
        return older
