"""The messages of a chat, as clients send them and as chat templates want them."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Tag, model_validator
from pydantic_core import PydanticCustomError

from pagoda.errors import InvalidRequestError
from pagoda.server.body import Body, Many, Text
from pagoda.server.call_arguments import CallArguments
from pagoda.server.tools import ToolName


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

    @property
    def said(self) -> str:
        return self.text


class RefusalPart(BaseModel):
    """What the assistant said where it would not answer: text as any other."""

    model_config = ConfigDict(strict=True)

    type: Literal["refusal"]
    refusal: Text

    @property
    def said(self) -> str:
        return self.refusal


def kind_of_part(value: Any) -> str:
    """For a choice between text and refusals."""
    given = value if isinstance(value, dict) else getattr(value, "__dict__", {})
    return "refusal part" if given.get("type") == "refusal" else "text part"


_Part = Annotated[
    Annotated[TextPart, Tag("text part")] | Annotated[RefusalPart, Tag("refusal part")],
    Discriminator(kind_of_part),
]


class CalledFunction(BaseModel):
    """What was called, its arguments as JSON text."""

    model_config = ConfigDict(strict=True)

    name: ToolName
    arguments: Text = ""

    def for_template(self, arguments: CallArguments) -> dict[str, Any]:
        return {"name": self.name, "arguments": arguments.read(self.arguments)}


class MadeCall(BaseModel):
    """A call of a tool that the assistant made."""

    model_config = ConfigDict(strict=True)

    id: Text
    type: Literal["function"] = "function"
    function: CalledFunction

    def for_template(self, arguments: CallArguments) -> dict[str, Any]:
        function = self.function.for_template(arguments)
        return {"id": self.id, "type": self.type, "function": function}


_TEMPLATE_ROLES = {"developer": "system", "function": "tool", "ipython": "tool"}
"""Names that some clients have for roles which templates know by another."""


def thought_field(thought: str | None) -> dict[str, str]:
    """What the assistant thought, under the name that chat templates have for it."""
    return {"reasoning_content": thought} if thought else {}


class Message(Body):
    """One message of a chat."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function", "ipython"]
    content: Text | Many[_Part] | None = None
    refusal: Text | None = None
    """What the assistant said instead of its content."""
    reasoning_content: Text | None = None
    """What the assistant thought before it said that."""
    reasoning: Text | None = None
    """vLLM's newer name for it."""
    tool_calls: Many[MadeCall] | None = None
    tool_call_id: Text | None = None
    """Names the call whose result a message of role `tool` brings."""
    name: Text | None = None
    """Who speaks, or the tool that does, for chat templates that tell it."""

    @model_validator(mode="after")
    def _has_something_to_say(self) -> Self:
        # An assistant may only call; an empty result of a tool comes as null from some clients.
        if self.content is None and self.role in ("system", "developer", "user"):
            raise PydanticCustomError("no_content", f"a message of role {self.role} has content")
        return self

    @property
    def text(self) -> str:
        """All that it says."""
        if isinstance(self.content, list):
            return "".join(part.said for part in self.content)
        return self.content or self.refusal or ""

    def for_template(self, arguments: CallArguments) -> dict[str, Any]:
        """As chat templates expect it: plain text, OpenAI's names of old.

        Raises `InvalidRequestError` for calls that no assistant made, and for too many arguments.
        """
        role = _TEMPLATE_ROLES.get(self.role, self.role)
        message: dict[str, Any] = {"role": role, "content": self.text}
        if role == "assistant":
            message |= thought_field(self.reasoning_content or self.reasoning)
        if self.tool_calls:
            if role != "assistant":
                limit = "only an assistant's message has tool_calls"
                raise InvalidRequestError("messages", role, limit)
            message["tool_calls"] = [call.for_template(arguments) for call in self.tool_calls]
        if self.tool_call_id is not None:
            message["tool_call_id"] = self.tool_call_id
        if self.name is not None:
            message["name"] = self.name
        return message
