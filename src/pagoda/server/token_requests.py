"""The bodies of `/tokenize` and `/detokenize`, as vLLM has them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pagoda.errors import InvalidRequestError
from pagoda.server.body import Many, Text
from pagoda.server.chat_fields import ChatFields
from pagoda.server.model_body import ModelBody
from pagoda.server.tools import ToolUse


class TokenizeRequest(ModelBody, ChatFields):
    """The body of `/tokenize`: a prompt, or the messages of a chat."""

    prompt: Text | None = None
    return_token_strs: bool = False

    def check(self, served_models: Sequence[str]) -> None:
        super().check(served_models)
        if (self.prompt is None) == (self.messages is None):
            raise InvalidRequestError("prompt", self.prompt, "or messages: exactly one of the two")
        for message in self.messages or []:
            message.refuse_uncovered()

    def described_tools(self) -> list[dict[str, Any]]:
        """Raises `InvalidRequestError` for tools that will not do."""
        return ToolUse.of(self.tools, None, None).described


class DetokenizeRequest(ModelBody):
    """The body of `/detokenize`."""

    tokens: Many[int]
