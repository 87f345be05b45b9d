"""The tools that a body offers, and which of them may or must be called."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict
from pydantic_core import PydanticCustomError

from pagoda.errors import InvalidRequestError
from pagoda.server.body import Many, Text
from pagoda.server.field_table import Ignored
from pagoda.server.list_bounds import at_most
from pagoda.server.responses_api.tool_kinds import (
    FunctionPlace,
    FunctionTool,
    NamespaceTool,
    OtherTool,
    ToolKind,
)
from pagoda.server.tools import MAX_TOOLS, FunctionName, NamedTool, Tool, ToolUse

_NOT_COVERED = "only functions are covered, which the client runs itself"


def _covered_kind(value: object) -> object:
    kind = value.get("type") if isinstance(value, dict) else None
    if isinstance(kind, str) and kind not in ("function", "allowed_tools"):
        raise PydanticCustomError(
            "tool_not_covered",
            "tools of type {kind}: " + _NOT_COVERED,
            {"kind": repr(kind[:64])},
        )
    return value


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


@dataclass(frozen=True, slots=True)
class OfferedTools:
    """All tools of a body: functions, those in namespaces, and what is left out."""

    functions: Sequence[tuple[FunctionPlace, FunctionTool]]
    left_out: Sequence[str]
    """Kinds of tools that are not covered, each once."""

    @classmethod
    def of(cls, offered: Sequence[ToolKind] | None) -> OfferedTools:
        """Raises `InvalidRequestError` for too many tools, and where no function is among them."""
        functions: list[tuple[FunctionPlace, FunctionTool]] = []
        left_out: list[str] = []
        for namespace, tool in _one_by_one(offered or ()):
            if isinstance(tool, FunctionTool):
                functions.append((FunctionPlace(namespace, tool.name), tool))
            else:
                left_out.append(tool.type)
            if len(functions) + len(left_out) > MAX_TOOLS:
                raise InvalidRequestError("tools", "more tools", f"at most {MAX_TOOLS}")
        if left_out and not functions:
            raise InvalidRequestError("tools", left_out[0], _NOT_COVERED)
        return cls(functions, list(dict.fromkeys(left_out)))

    @property
    def in_namespaces(self) -> dict[str, FunctionPlace]:
        """The places of functions in namespaces, by what the model knows them by."""
        return {place.full_name: place for place, _ in self.functions if place.namespace}

    def for_chat(self) -> list[Tool]:
        """The functions, each by its full name."""
        return [
            Tool(type="function", function=function.model_copy(update={"name": place.full_name}))
            for place, function in self.functions
        ]

    def ignored(self) -> list[Ignored]:
        """What is left out, for the client to know."""
        return [Ignored("tools", _NOT_COVERED, kind) for kind in self.left_out]


def _one_by_one(
    offered: Sequence[ToolKind],
) -> Iterator[tuple[str | None, FunctionTool | OtherTool]]:
    """Each tool with the namespace that it is in."""
    for tool in offered:
        if isinstance(tool, NamespaceTool):
            yield from ((tool.name, inner) for inner in tool.tools)
        else:
            yield None, tool


def tool_use(offered: OfferedTools, choice: OfferedChoice | None, parallel: bool | None) -> ToolUse:
    """Tools that are not allowed are not shown to the model either.

    Raises `InvalidRequestError` for tools, or a choice among them, that will not do.
    """
    tools = offered.for_chat()
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
