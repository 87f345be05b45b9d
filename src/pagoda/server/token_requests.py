"""The bodies of `/tokenize` and `/detokenize`, as vLLM has them."""

from __future__ import annotations

from collections.abc import Sequence

from pagoda.errors import InvalidRequestError
from pagoda.server.body import Many, Text
from pagoda.server.chat_fields import ChatFields
from pagoda.server.field_table import Ignored
from pagoda.server.model_body import ModelBody
from pagoda.server.template_chat import TemplateChat
from pagoda.server.tools import ToolUse


class TokenizeRequest(ModelBody, ChatFields):
    """The body of `/tokenize`: a prompt, or the messages of a chat."""

    prompt: Text | None = None
    return_token_strs: bool = False

    def check(self, served_models: Sequence[str]) -> None:
        super().check(served_models)
        if (self.prompt is None) == (self.messages is None):
            limit = "takes a prompt or messages, one of the two"
            raise InvalidRequestError("prompt", self.prompt, limit)
        for message in self.messages or []:
            message.refuse_uncovered()

    def template_chat(self, max_model_len: int) -> TemplateChat:
        """Raises `InvalidRequestError` for what cannot be told to a model of that length."""
        tools = ToolUse.of(self.tools, None, None).described
        return TemplateChat(self.template_messages(max_model_len), tools, self.chat_options())

    def unread(self, template_names: frozenset[str]) -> list[Ignored]:
        """A prompt that is no chat has no template."""
        if self.messages is not None:
            return super().unread(template_names)
        given = [name for name in ChatFields.model_fields if name != "add_special_tokens"]
        return [Ignored(name, "no chat template is used") for name in given if getattr(self, name)]


class DetokenizeRequest(ModelBody):
    """The body of `/detokenize`."""

    tokens: Many[int]
