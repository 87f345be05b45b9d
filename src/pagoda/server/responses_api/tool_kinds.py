"""The kinds of tools that a body may list: functions, namespaces of them, and others."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NamedTuple

from pydantic import AfterValidator, BaseModel, ConfigDict, Discriminator, Field, Tag
from pydantic_core import PydanticSerializationError, to_json

from pagoda.server.body import Many, Text
from pagoda.server.inner_body import InnerBody
from pagoda.server.list_bounds import at_most
from pagoda.server.tool_choice import MAX_TOOLS
from pagoda.server.tools import Function, ToolName


def _can_be_told(value: dict[str, Any]) -> dict[str, Any]:
    # A response repeats it; a deep one, or half of a surrogate pair in it, cannot be written.
    try:
        to_json(value)
    except (PydanticSerializationError, ValueError, RecursionError):
        raise ValueError("too deep, or with half of a surrogate pair") from None
    return value


ToldObject = Annotated[dict[str, Any], AfterValidator(_can_be_told)]
"""Any JSON object that a response can repeat."""


class FunctionTool(Function):
    """A function in one object, where a chat has it in two."""

    type: Literal["function"]
    description: Text | None = None
    parameters: ToldObject | None = None


class OtherTool(BaseModel):
    """A tool of any other kind, as a search on the web. It is not offered to the model."""

    model_config = ConfigDict(strict=True)

    type: Annotated[Text, Field(max_length=64)]


def _kind_of(value: Any) -> str:
    given = value if isinstance(value, dict) else getattr(value, "__dict__", {})
    kind = given.get("type")
    if kind == "namespace":
        return "namespace"
    return "other" if isinstance(kind, str) and kind != "function" else "function"


_Listed = Annotated[
    Annotated[FunctionTool, Tag("function")] | Annotated[OtherTool, Tag("other")],
    Discriminator(_kind_of),
]


class NamespaceTool(InnerBody):
    """Functions under one name. The model calls them `namespace.function`."""

    type: Literal["namespace"]
    name: ToolName
    description: Text | None = None
    tools: Annotated[Many[_Listed], at_most(MAX_TOOLS)]


ToolKind = Annotated[
    Annotated[FunctionTool, Tag("function")]
    | Annotated[NamespaceTool, Tag("namespace")]
    | Annotated[OtherTool, Tag("other")],
    Discriminator(_kind_of),
]


class FunctionPlace(NamedTuple):
    """Where a function stands among the tools of a body."""

    namespace: str | None
    name: str

    @property
    def full_name(self) -> str:
        """What the model knows it by."""
        return self.name if self.namespace is None else f"{self.namespace}.{self.name}"
