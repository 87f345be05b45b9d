"""The tools that a body offers, and which of them may or must be called."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict
from pydantic_core import PydanticCustomError, PydanticSerializationError, to_json

from pagoda.errors import InvalidRequestError
from pagoda.server.body import Many, Text
from pagoda.server.list_bounds import at_most
from pagoda.server.tools import MAX_TOOLS, Function, FunctionName, NamedTool, Tool, ToolUse


def _can_be_told(value: dict[str, Any]) -> dict[str, Any]:
    # A response repeats it; a deep one, or half of a surrogate pair in it, cannot be written.
    try:
        to_json(value)
    except (PydanticSerializationError, ValueError, RecursionError):
        raise ValueError("too deep, or with half of a surrogate pair") from None
    return value


ToldObject = Annotated[dict[str, Any], AfterValidator(_can_be_told)]
"""Any JSON object that a response can repeat."""


def _covered_kind(value: object) -> object:
    kind = value.get("type") if isinstance(value, dict) else None
    if isinstance(kind, str) and kind not in ("function", "allowed_tools"):
        raise PydanticCustomError(
            "tool_not_covered",
            "tools of type {kind} are not covered, only functions, which the client runs itself",
            {"kind": repr(kind[:64])},
        )
    return value


class FunctionTool(Function):
    """A function in one object, where a chat has it in two."""

    type: Literal["function"]
    description: Text | None = None
    parameters: ToldObject | None = None

    def for_chat(self) -> Tool:
        return Tool(type="function", function=self)


OfferedTool = Annotated[FunctionTool, BeforeValidator(_covered_kind)]


class FunctionChoice(BaseModel):
    """The one function that must be called, or one of those that may."""

    model_config = ConfigDict(strict=True)

    type: Literal["function"]
    name: Text


class AllowedTools(BaseModel):
    """Some of the tools, of which one may or must be called."""

    model_config = ConfigDict(strict=True)

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[
        Many[Annotated[FunctionChoice, BeforeValidator(_covered_kind)]], at_most(MAX_TOOLS)
    ]


OfferedChoice = Annotated[
    Literal["none", "auto", "required"] | FunctionChoice | AllowedTools,
    BeforeValidator(_covered_kind),
]


def tool_use(
    offered: Sequence[FunctionTool] | None, choice: OfferedChoice | None, parallel: bool | None
) -> ToolUse:
    """Tools that are not allowed are not shown to the model either.

    Raises `InvalidRequestError` for tools, or a choice among them, that will not do.
    """
    tools = [tool.for_chat() for tool in offered or ()]
    if isinstance(choice, FunctionChoice):
        named = NamedTool(type="function", function=FunctionName(name=choice.name))
        return ToolUse.of(tools, named, parallel)
    if not isinstance(choice, AllowedTools):
        return ToolUse.of(tools, choice, parallel)
    names = ToolUse.of(tools, None, parallel).names
    allowed = {tool.name for tool in choice.tools}
    if not allowed or not allowed <= names:
        limit = "must be the names of one or more of tools"
        raise InvalidRequestError("tool_choice", sorted(allowed), limit)
    return ToolUse.of(
        [tool for tool in tools if tool.function.name in allowed], choice.mode, parallel
    )
