"""What clients send to `/v1/responses`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from pagoda.errors import InvalidRequestError, RefusedError
from pagoda.models.chat_options import ChatOptions, TemplateValue
from pagoda.request import SamplingParams
from pagoda.server.body import Many, ManyNamed, Text
from pagoda.server.call_arguments import CallArguments
from pagoda.server.chat_fields import effort_kwargs
from pagoda.server.field_table import Ignored
from pagoda.server.inner_body import InnerBody
from pagoda.server.list_bounds import FewParts, at_most
from pagoda.server.numbers import LaxInt
from pagoda.server.protocol import GenerationRequest
from pagoda.server.responses_api.input_items import (
    InputItem,
    Item,
    MessageItem,
    template_messages,
)
from pagoda.server.responses_api.offered_tools import (
    OfferedChoice,
    OfferedTools,
)
from pagoda.server.responses_api.text_config import TextConfig
from pagoda.server.responses_api.tool_kinds import OtherTool, ToolKind
from pagoda.server.template_chat import TemplateChat
from pagoda.server.tool_choice import MAX_TOOLS
from pagoda.server.tools import ToolUse
from pagoda.structured import StructuredOutputs

_LOGPROBS = "message.output_text.logprobs"
_OF_OTHER_TOOLS = (
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "reasoning.encrypted_content",
    "web_search_call.action.sources",
    "web_search_call.results",
)
"""What no answer of this server has, so that there is nothing to include."""
_MAX_INCLUDED = 32
"""More than can be told apart."""

_REFUSED: dict[str, tuple[tuple[object, ...], str]] = {
    "background": ((False,), "is not covered: a response ends with its request"),
    "context_management": (([],), "is not covered: the client shortens its conversation"),
    "conversation": ((), "is not covered: use previous_response_id, or send all items"),
    "max_tokens": ((), "is called max_output_tokens here"),
    "max_completion_tokens": ((), "is called max_output_tokens here"),
    "messages": ((), "is called input here"),
    "moderation": ((), "is not covered"),
    "n_predict": ((), "is called max_output_tokens here"),
    "n": ((1,), "is not covered: a response is one answer"),
    "prompt": ((), "is not covered: there are no stored prompts"),
    "prompt_logprobs": ((), "is not covered: a response has no place for them"),
    "return_token_ids": ((False,), "is not covered: a response has no place for them"),
    "return_tokens_as_token_ids": ((False,), "is not covered"),
    "response_format": ((), "is called text.format here"),
    "truncation": (("disabled",), "is not covered: the client shortens its conversation"),
}
"""Values that ask for nothing, and what is told about any other."""

_OWN_NAMES = {
    "logprobs": "top_logprobs",
    "max_tokens": "max_output_tokens",
    "messages": "input",
}


@contextmanager
def own_field_names() -> Iterator[None]:
    """Errors name fields as this API does, whatever they are called within."""
    try:
        yield
    except RefusedError as error:
        name = _OWN_NAMES.get(error.field)
        if name is not None:
            error.args = (str(error).replace(f"{error.field}=", f"{name}=", 1),)
            error.field = name
        raise


_Key = Annotated[Text, Field(max_length=64)]
_Value = Annotated[Text, Field(max_length=512)]
_MAX_METADATA = 16
"""OpenAI's bounds of what a response repeats and nobody reads."""


class Reasoning(InnerBody):
    """How much a model should think. A summary is not made."""

    effort: Text | None = None
    summary: Text | None = None


class ResponsesRequest(GenerationRequest):
    """The body of `/v1/responses`."""

    looked_at = GenerationRequest.looked_at | _REFUSED.keys()
    max_tokens_fields = ("max_output_tokens",)
    input: Text | FewParts[InputItem] | None = None
    instructions: Text | None = None
    previous_response_id: Text | None = None
    max_output_tokens: LaxInt | None = None
    top_logprobs: LaxInt | None = None
    include: Annotated[Many[Text], at_most(_MAX_INCLUDED)] | None = None
    tools: Annotated[Many[ToolKind], at_most(MAX_TOOLS)] | None = None
    tool_choice: OfferedChoice | None = None
    parallel_tool_calls: bool | None = None
    text: TextConfig | None = None
    reasoning: Reasoning | None = None
    store: bool | None = None
    metadata: Annotated[ManyNamed[_Key, _Value], at_most(_MAX_METADATA)] | None = None
    truncation: Literal["auto", "disabled"] | None = None
    user: _Value | None = None

    def check(self, served_models: Sequence[str]) -> None:
        super().check(served_models)
        for name, (neutral, limit) in _REFUSED.items():
            value = getattr(self, name, None)
            if value is not None and value not in neutral:
                given = (
                    value.model_dump(exclude_none=True) if hasattr(value, "model_dump") else value
                )
                raise InvalidRequestError(name, given, limit)
        known = (_LOGPROBS, *_OF_OTHER_TOOLS)
        for name in self.include or ():
            if name not in known:
                raise InvalidRequestError("include", name, f"one of {', '.join(known)}")

    def items(self) -> list[InputItem]:
        """What is said, a text as the user's message."""
        if isinstance(self.input, str):
            return [MessageItem(role="user", content=self.input)]
        return self.input or []

    @cached_property
    def tool_use(self) -> ToolUse:
        """Raises `InvalidRequestError` for tools, or a choice among them, that will not do."""
        return self.offered_tools.use(self.tool_choice, self.parallel_tool_calls)

    @cached_property
    def offered_tools(self) -> OfferedTools:
        """Raises `InvalidRequestError` for tools that will not do."""
        return OfferedTools.of(self.tools)

    def ignored(self) -> list[Ignored]:
        asked = [*super().ignored(), *self.offered_tools.ignored()]
        asked += self.tool_use.ignored_stops(stop=self.stop, stop_token_ids=self.stop_token_ids)
        if self.text is not None:
            asked += self.text.ignored()
        return asked

    def unread(self, template_names: frozenset[str]) -> list[Ignored]:
        """What is meant for a template that reads `template_names` and not this."""
        kwargs = self.template_kwargs
        if not kwargs or kwargs.keys() & template_names:
            return []
        return [Ignored("reasoning", "the model's chat template does not read it", "effort")]

    @property
    def template_kwargs(self) -> dict[str, TemplateValue]:
        """What is meant for the chat template, under the names that it may read."""
        return effort_kwargs(self.effort)

    @property
    def effort(self) -> str | None:
        """How much the model should think."""
        return None if self.reasoning is None else self.reasoning.effort

    def template_chat(self, items: Iterable[Item], max_model_len: int) -> TemplateChat:
        """Of `items`, which are those of earlier responses too.

        Raises `InvalidRequestError` for what cannot be told to a model of that length.
        """
        messages = template_messages(self.instructions, items, CallArguments(max_model_len))
        if not messages:
            raise InvalidRequestError("input", self.input, "must hold at least one message")
        options = ChatOptions(
            truncation=self.prompt_truncation, template_kwargs=self.template_kwargs
        )
        return TemplateChat(messages, self.tool_use.described, options)

    def structured(self) -> StructuredOutputs | None:
        """The constraint, if there is one. Raises `InvalidRequestError`."""
        wanted, other = self.text and self.text.structured(), super().structured()
        if wanted is not None and other is not None:
            raise other.refuse("cannot be combined with text")
        return wanted or other

    def sampling(self, max_model_len: int) -> SamplingParams:
        """Without a limit the answer may grow up to the model's length.

        Raises `InvalidRequestError` for a value out of range.
        """
        chosen = self.tool_use.sampling_fields(self.structured())
        if self.max_output_tokens is None:
            chosen["max_tokens"] = None
        chosen["logprobs"] = (self.top_logprobs or 0) if self._wants_logprobs else None
        with own_field_names():
            return self.tool_use.without_stops(self.sampling_with(max_model_len, **chosen))

    @property
    def _wants_logprobs(self) -> bool:
        return bool(self.top_logprobs) or _LOGPROBS in (self.include or ())

    def told(self) -> dict[str, Any]:
        """What a response repeats of it."""
        return {
            "instructions": self.instructions,
            "max_output_tokens": self.max_output_tokens,
            "metadata": self.metadata or {},
            "parallel_tool_calls": self.parallel_tool_calls is not False,
            "previous_response_id": self.previous_response_id,
            "text": (self.text or TextConfig()).told(),
            "tool_choice": _told_choice(self.tool_choice),
            "tools": [
                tool.model_dump() for tool in self.tools or () if not isinstance(tool, OtherTool)
            ],
            "top_logprobs": self.top_logprobs or 0,
            "user": self.user,
        }


def _told_choice(choice: OfferedChoice | None) -> str | dict[str, Any]:
    if isinstance(choice, BaseModel):
        return choice.model_dump(exclude_none=True)
    return choice or "auto"
