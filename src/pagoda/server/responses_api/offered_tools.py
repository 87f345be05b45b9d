"""The tools that a body offers, and which of them may or must be called."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
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
from pagoda.server.tool_choice import (
    MAX_TOOLS,
    AllowedNames,
    AllowedTools,
    FunctionName,
    NamedTool,
    ToolMode,
)
from pagoda.server.tools import Tool, ToolUse

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
    namespace: Text | None = None
    """May be left out where no other function has the name."""


class AllowedFunctions(BaseModel):
    """Some of the tools, of which one may or must be called."""

    model_config = ConfigDict(strict=True)

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[
        Many[Annotated[FunctionChoice, BeforeValidator(_covered_kind)]], at_most(MAX_TOOLS)
    ]


OfferedChoice = Annotated[
    ToolMode | FunctionChoice | AllowedFunctions,
    BeforeValidator(_covered_kind),
]


@dataclass(frozen=True, slots=True)
class OfferedTools:
    """All tools of a body: functions, those in namespaces, and what is left out."""

    functions: Sequence[tuple[FunctionPlace, FunctionTool]]
    descriptions: Mapping[str, str]
    """Of namespaces, by their names."""
    left_out: Sequence[str]
    """Kinds of tools that are not covered, each once."""

    @classmethod
    def of(cls, offered: Sequence[ToolKind] | None) -> OfferedTools:
        """Raises `InvalidRequestError` for too many tools, and where no function is among them."""
        functions: list[tuple[FunctionPlace, FunctionTool]] = []
        descriptions: dict[str, str] = {}
        left_out: list[str] = []
        for namespace, tool in _one_by_one(offered or ()):
            if isinstance(tool, FunctionTool):
                name = None if namespace is None else namespace.name
                functions.append((FunctionPlace(name, tool.name), tool))
            else:
                left_out.append(tool.type)
            if namespace is not None and namespace.description:
                descriptions.setdefault(namespace.name, namespace.description)
            if len(functions) + len(left_out) > MAX_TOOLS:
                raise InvalidRequestError("tools", "more tools", f"at most {MAX_TOOLS}")
        if left_out and not functions:
            raise InvalidRequestError("tools", left_out[0], _NOT_COVERED)
        return cls(functions, descriptions, list(dict.fromkeys(left_out)))

    @property
    def in_namespaces(self) -> dict[str, FunctionPlace]:
        """The places of functions in namespaces, by what the model knows them by."""
        return {place.full_name: place for place, _ in self.functions if place.namespace}

    def use(self, choice: OfferedChoice | None, parallel: bool | None) -> ToolUse:
        """Raises `InvalidRequestError` for tools, or a choice among them, that will not do."""
        if isinstance(choice, FunctionChoice):
            return ToolUse.of(self._for_chat(), self._named(choice), parallel)
        if not isinstance(choice, AllowedFunctions):
            return ToolUse.of(self._for_chat(), choice, parallel)
        names = AllowedNames(mode=choice.mode, tools=[*map(self._named, choice.tools)])
        allowed = AllowedTools(type="allowed_tools", allowed_tools=names)
        return ToolUse.of(self._for_chat(names.names), allowed, parallel)

    def ignored(self) -> list[Ignored]:
        """What is left out, for the client to know."""
        return [Ignored("tools", _NOT_COVERED, kind) for kind in self.left_out]

    def _for_chat(self, shown: Set[str] | None = None) -> list[Tool]:
        """The functions, each by its full name. A namespace is described by the first of its
        functions that is shown; without `shown` all are."""
        tools, descriptions = [], dict(self.descriptions)
        for place, function in self.functions:
            changed = {"name": place.full_name}
            if shown is None or place.full_name in shown:
                about = descriptions.pop(place.namespace or "", None)
                if about is not None:
                    changed["description"] = "\n".join(filter(None, [about, function.description]))
            tools.append(Tool(type="function", function=function.model_copy(update=changed)))
        return tools

    def _named(self, choice: FunctionChoice) -> NamedTool:
        name = FunctionName(name=self._full_name(choice))
        return NamedTool(type="function", function=name)

    def _full_name(self, choice: FunctionChoice) -> str:
        """Of the function that is meant; what is none of them is left to be refused."""
        meant = FunctionPlace(choice.namespace, choice.name).full_name
        names = [place.full_name for place, _ in self.functions]
        inner = [place.full_name for place, _ in self.functions if place.name == choice.name]
        if meant in names or choice.namespace is not None or not inner:
            return meant
        if len(inner) > 1:
            limit = f"needs a namespace: there are {' and '.join(inner)}"
            raise InvalidRequestError("tool_choice", choice.name, limit)
        return inner[0]


def _one_by_one(
    offered: Sequence[ToolKind],
) -> Iterator[tuple[NamespaceTool | None, FunctionTool | OtherTool]]:
    """Each tool with the namespace that it is in."""
    for tool in offered:
        if isinstance(tool, NamespaceTool):
            yield from ((tool, inner) for inner in tool.tools)
        else:
            yield None, tool
