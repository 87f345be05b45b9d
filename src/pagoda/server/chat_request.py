"""The body of `/v1/chat/completions`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

from pagoda.errors import InvalidRequestError
from pagoda.request import SamplingParams
from pagoda.server.chat_fields import ChatFields
from pagoda.server.field_table import Ignored
from pagoda.server.list_bounds import FewParts
from pagoda.server.messages import Message
from pagoda.server.numbers import LaxInt
from pagoda.server.protocol import GenerationRequest
from pagoda.server.telling import Telling
from pagoda.server.template_chat import TemplateChat
from pagoda.server.tool_choice import ToolChoice
from pagoda.server.tools import ToolUse


class ChatCompletionRequest(GenerationRequest, ChatFields):
    """The body of `/v1/chat/completions`."""

    max_tokens_fields = ("max_completion_tokens", "max_tokens", "n_predict")
    messages: FewParts[Message]
    max_completion_tokens: LaxInt | None = None
    logprobs: bool | None = None
    top_logprobs: LaxInt | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    echo: bool | None = None
    """vLLM's: an answer that goes on with the assistant's last message begins with that."""
    include_reasoning: bool | None = None
    """vLLM's: what the model thinks is told."""

    def check(self, served_models: Sequence[str]) -> None:
        super().check(served_models)
        if not self.messages:
            raise InvalidRequestError("messages", [], "must hold at least one message")
        for message in self.messages:
            message.refuse_uncovered()
        if self.top_logprobs is not None and not self.logprobs:
            raise InvalidRequestError(
                "top_logprobs", self.top_logprobs, "is allowed with logprobs=true only"
            )

    def ignored(self) -> list[Ignored]:
        stops = self.tool_use.ignored_stops(stop=self.stop, stop_token_ids=self.stop_token_ids)
        return [*super().ignored(), *stops]

    def telling(self) -> Telling:
        """What the answer tells beside what was said."""
        return replace(super().telling(), thoughts=self.include_reasoning is not False)

    def echoed(self) -> str:
        """What the answer begins with."""
        last = self.messages[-1]
        return last.text if self.echo and last.role == "assistant" else ""

    def template_chat(self, max_model_len: int) -> TemplateChat:
        """Raises `InvalidRequestError` for what cannot be told to a model of that length."""
        options = self.chat_options(self.prompt_truncation)
        messages = self.template_messages(max_model_len)
        return TemplateChat(messages, self.tool_use.described, options)

    @cached_property
    def tool_use(self) -> ToolUse:
        """Raises `InvalidRequestError` for tools, or a choice among them, that will not do."""
        return ToolUse.of(self.tools, self.tool_choice, self.parallel_tool_calls)

    def sampling(self, max_model_len: int) -> SamplingParams:
        """Without a limit the answer may grow up to the model's length.

        Raises `InvalidRequestError` for a value out of range.
        """
        chosen = self.tool_use.sampling_fields(self.structured())
        if self.max_tokens_field is None:
            chosen["max_tokens"] = None
        chosen["logprobs"] = (self.top_logprobs or 0) if self.logprobs else None
        try:
            return self.tool_use.without_stops(self.sampling_with(max_model_len, **chosen))
        except InvalidRequestError as error:
            if error.field != "logprobs":
                raise
            raise InvalidRequestError("top_logprobs", error.value, error.limit) from None
