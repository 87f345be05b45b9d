"""Which of its tools a request lets or makes the model call, as a chat says it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Tag

from pagoda.server.body import Many
from pagoda.server.list_bounds import at_most

MAX_TOOLS = 128


class FunctionName(BaseModel):
    name: str


class NamedTool(BaseModel):
    """The one tool that must be called, or one of those that may."""

    model_config = ConfigDict(strict=True)

    type: Literal["function"]
    function: FunctionName


class AllowedNames(BaseModel):
    """The tools of which one may, or with "required" must be called."""

    model_config = ConfigDict(strict=True)

    mode: Literal["auto", "required"]
    tools: Annotated[Many[NamedTool], at_most(MAX_TOOLS)]

    @property
    def names(self) -> frozenset[str]:
        return frozenset(tool.function.name for tool in self.tools)


class AllowedTools(BaseModel):
    """Some of the tools instead of all of them."""

    model_config = ConfigDict(strict=True)

    type: Literal["allowed_tools"]
    allowed_tools: AllowedNames


ToolMode = Literal["none", "auto", "required"]


def _kind_of(value: Any) -> str:
    given = value if isinstance(value, dict) else getattr(value, "__dict__", None)
    if given is None:
        return "mode"
    return "allowed tools" if given.get("type") == "allowed_tools" else "named tool"


ToolChoice = Annotated[
    Annotated[ToolMode, Tag("mode")]
    | Annotated[NamedTool, Tag("named tool")]
    | Annotated[AllowedTools, Tag("allowed tools")],
    Discriminator(_kind_of),
]
