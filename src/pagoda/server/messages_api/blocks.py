"""The blocks of content that clients send, and the messages that hold them.

What a block says beside these fields, as `cache_control` and `citations`, changes nothing.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

from pagoda.errors import InvalidRequestError
from pagoda.server.body import Many, Text
from pagoda.server.messages_api.definitions import Definitions
from pagoda.structured import MAX_SCHEMA_DEPTH, is_deeper_than


class _Block(BaseModel):
    model_config = ConfigDict(strict=True)


class TextBlock(_Block):
    type: Literal["text"]
    text: Text


class ThinkingBlock(_Block):
    """What the assistant thought, as far as it can be read."""

    type: Literal["thinking", "redacted_thinking"]
    thinking: Text = ""


class ToolUseBlock(_Block):
    """A call of a tool that the assistant made."""

    type: Literal["tool_use"]
    id: Text
    name: Text
    input: dict[str, Any]

    def for_template(self) -> dict[str, Any]:
        """As chat templates expect it. Raises `InvalidRequestError` for input too deep."""
        if is_deeper_than(self.input, MAX_SCHEMA_DEPTH):
            limit = f"a tool_use's input may be at most {MAX_SCHEMA_DEPTH} levels deep"
            raise InvalidRequestError("messages", self.input, limit)
        function = {"name": self.name, "arguments": self.input}
        return {"id": self.id, "type": "function", "function": function}


_COVERED = ("text", "thinking", "redacted_thinking", "tool_use", "tool_result")


def _covered(*kinds: str) -> BeforeValidator:
    """Refuses blocks of other kinds by name."""

    def check(block: object) -> object:
        kind = block.get("type") if isinstance(block, dict) else None
        if isinstance(kind, str) and kind not in kinds:
            limit = "blocks of this type are not covered: no images, documents or server tools"
            raise PydanticCustomError("block_not_covered", limit)
        return block

    return BeforeValidator(check)


PlainBlock = Annotated[TextBlock, _covered("text")]
"""Where nothing but text is taken."""


class ToolReferenceBlock(_Block):
    """A tool that a search among the client's tools has found."""

    type: Literal["tool_reference"]
    tool_name: Text


_ResultBlock = Annotated[TextBlock | ToolReferenceBlock, Field(discriminator="type")]


class ToolResultBlock(_Block):
    """What a call of a tool gave."""

    type: Literal["tool_result"]
    tool_use_id: Text
    content: Text | Many[Annotated[_ResultBlock, _covered("text", "tool_reference")]] | None = None
    is_error: bool | None = None

    def for_template(self, definitions: Definitions) -> dict[str, Any]:
        """As chat templates expect it, which have no other place for what failed than the text.

        Raises `InvalidRequestError` for a reference to no tool.
        """
        text = self._text(definitions)
        content = f"Error: {text}" if self.is_error else text
        return {"role": "tool", "tool_call_id": self.tool_use_id, "content": content}

    def _text(self, definitions: Definitions) -> str:
        if isinstance(self.content, str) or self.content is None:
            return self.content or ""
        return "\n".join(
            block.text if isinstance(block, TextBlock) else definitions.tell(block.tool_name)
            for block in self.content
        )


_AnyBlock = Annotated[
    TextBlock | ThinkingBlock | ToolUseBlock | ToolResultBlock, Field(discriminator="type")
]
ContentBlock = Annotated[_AnyBlock, _covered(*_COVERED)]


class InputMessage(BaseModel):
    """One message of a conversation."""

    model_config = ConfigDict(strict=True)

    role: Literal["user", "assistant", "system"]
    content: Text | Many[ContentBlock]

    @property
    def blocks(self) -> list[ContentBlock]:
        """Its content; text alone is short for one block of it."""
        if isinstance(self.content, str):
            return [TextBlock(type="text", text=self.content)]
        return self.content


def text_of(content: str | list[TextBlock]) -> str:
    """A text, or that of blocks, each of which begins a line."""
    if isinstance(content, str):
        return content
    return "\n".join(block.text for block in content)
