"""The messages of a chat, as clients send them and as chat templates want them."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, model_validator
from pydantic_core import PydanticCustomError

from pagoda.errors import InvalidRequestError
from pagoda.server.body import Body, Many, Text
from pagoda.server.tools import ToolName
from pagoda.structured import MAX_SCHEMA_DEPTH, is_deeper_than


def _covered_part(kind: object) -> object:
    if isinstance(kind, str) and kind != "text":
        raise PydanticCustomError(
            "part_not_covered", "only parts of type 'text' are covered: no images, sound or files"
        )
    return kind


class TextPart(Body):
    """One part of a message whose content is a list."""

    type: Annotated[Literal["text"], BeforeValidator(_covered_part)]
    text: Text


class CalledFunction(BaseModel):
    """What was called, its arguments as JSON text."""

    model_config = ConfigDict(strict=True)

    name: ToolName
    arguments: Text = ""

    def for_template(self) -> dict[str, Any]:
        """Chat templates write the arguments themselves; what is no JSON object stays text."""
        try:
            arguments = json.loads(self.arguments or "{}")
        except (ValueError, RecursionError):
            arguments = None
        if not isinstance(arguments, dict) or is_deeper_than(arguments, MAX_SCHEMA_DEPTH):
            return {"name": self.name, "arguments": self.arguments}
        return {"name": self.name, "arguments": arguments}


class MadeCall(BaseModel):
    """A call of a tool that the assistant made."""

    model_config = ConfigDict(strict=True)

    id: Text
    type: Literal["function"] = "function"
    function: CalledFunction

    def for_template(self) -> dict[str, Any]:
        return {"id": self.id, "type": self.type, "function": self.function.for_template()}


_TEMPLATE_ROLES = {"developer": "system", "function": "tool", "ipython": "tool"}
"""Names that some clients have for roles which templates know by another."""


class Message(Body):
    """One message of a chat."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function", "ipython"]
    content: Text | Many[TextPart] | None = None
    tool_calls: Many[MadeCall] | None = None
    tool_call_id: Text | None = None
    """Names the call whose result a message of role `tool` brings."""

    @model_validator(mode="after")
    def _has_something_to_say(self) -> Self:
        # An assistant may only call; an empty result of a tool comes as null from some clients.
        if self.content is None and self.role in ("system", "developer", "user"):
            raise PydanticCustomError("no_content", f"a message of role {self.role} has content")
        return self

    def for_template(self) -> dict[str, Any]:
        """As chat templates expect it: plain text, OpenAI's names of old.

        Raises `InvalidRequestError` for calls that no assistant made.
        """
        role = _TEMPLATE_ROLES.get(self.role, self.role)
        content = self.content or ""
        if isinstance(content, list):
            content = "".join(part.text for part in content)
        message: dict[str, Any] = {"role": role, "content": content}
        if self.tool_calls:
            if role != "assistant":
                limit = "only an assistant's message has tool_calls"
                raise InvalidRequestError("messages", role, limit)
            message["tool_calls"] = [call.for_template() for call in self.tool_calls]
        if self.tool_call_id is not None:
            message["tool_call_id"] = self.tool_call_id
        return message
