"""Tools as Anthropic's API has them, in the one form that the server knows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict
from pydantic_core import PydanticCustomError

from pagoda.errors import InvalidRequestError
from pagoda.server import tools
from pagoda.server.body import Text
from pagoda.server.tool_choice import FunctionName, NamedTool, ToolMode


def _custom(kind: object) -> object:
    if isinstance(kind, str) and kind != "custom":
        limit = "only tools of type 'custom' are covered: none that runs at the server"
        raise PydanticCustomError("tool_not_covered", limit)
    return kind


class OfferedTool(BaseModel):
    """One entry of `tools`: a function of the client's."""

    model_config = ConfigDict(strict=True)

    type: Annotated[Literal["custom"] | None, BeforeValidator(_custom)] = None
    name: tools.ToolName
    description: Text | None = None
    input_schema: dict[str, Any]
    strict: bool | None = None
    defer_loading: bool | None = None
    """Described where a `tool_reference` names it, not before the conversation."""

    def as_function(self) -> tools.Tool:
        function = tools.Function(
            name=self.name,
            description=self.description,
            parameters=self.input_schema,
            strict=self.strict,
        )
        return tools.Tool(type="function", function=function)


_MODES: dict[str, ToolMode] = {
    "auto": "auto",
    "any": "required",
    "none": "none",
}


class ToolChoice(BaseModel):
    """Which tools may or must be called."""

    model_config = ConfigDict(strict=True)

    type: Literal["auto", "any", "tool", "none"]
    name: Text | None = None
    disable_parallel_tool_use: bool | None = None

    def as_choice(self) -> ToolMode | NamedTool:
        """Raises `InvalidRequestError` where a tool is meant and none named."""
        if self.type != "tool":
            return _MODES[self.type]
        if self.name is None:
            raise InvalidRequestError("tool_choice", {"type": "tool"}, "needs the tool's name")
        return NamedTool(type="function", function=FunctionName(name=self.name))


def tool_use(offered: Sequence[OfferedTool] | None, choice: ToolChoice | None) -> tools.ToolUse:
    """Raises `InvalidRequestError` for tools, or a choice among them, that will not do."""
    choice = choice or ToolChoice(type="auto")
    if choice.type == "any" and not offered:
        raise InvalidRequestError("tool_choice", {"type": "any"}, "needs tools")
    functions = [tool.as_function() for tool in offered or ()]
    use = tools.ToolUse.of(functions, choice.as_choice(), not choice.disable_parallel_tool_use)
    return replace(use, deferred=frozenset(t.name for t in offered or () if t.defer_loading))
