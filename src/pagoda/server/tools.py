"""What clients send about tools: which there are, and which may or must be called."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from pagoda.engine.closed_schema import closed
from pagoda.errors import InvalidRequestError
from pagoda.request import SamplingParams
from pagoda.server.field_table import Ignored
from pagoda.server.forced_calls import ForcedArguments, ForcedCalls
from pagoda.server.inner_body import InnerBody
from pagoda.server.moved_schema import moved
from pagoda.server.tool_calls import NO_TOOLS, FirstCall, ToolReader
from pagoda.server.tool_choice import AllowedNames, AllowedTools, NamedTool, ToolChoice, ToolMode
from pagoda.server.tool_forms import begin_reading
from pagoda.structured import (
    DEPTH_LIMIT,
    MAX_SCHEMA_DEPTH,
    StructuredOutputs,
    has_more_characters,
    is_deeper_than,
)

if TYPE_CHECKING:
    from pagoda.engine.async_engine import AsyncEngine

MAX_PARAMETERS_CHARACTERS = 256 * 1024
"""Of all tools together, as JSON: whoever looks at schemas takes a time that grows with them."""
ToolName = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.-]{1,128}$")]
_FORMATS_OF_TEXT = ("response_format", "text", "output_config", "output_format")
"""Fields that say how a text looks: an answer that must be a call has none. Those of vLLM and
llama.cpp speak of the whole answer."""
_TYPES = {"array", "boolean", "integer", "null", "number", "object", "string"}


class Function(InnerBody):
    """A function that the model may call; `parameters` is the JSON schema of its arguments."""

    name: ToolName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None

    def schema_of_arguments(self) -> dict[str, Any]:
        """It is an object, also where that was not said, and without parameters an empty one."""
        return {"type": "object", **(self.parameters or {"properties": {}})}

    def schema_of_call(self) -> dict[str, Any]:
        """What the arguments of a forced call follow; under `strict` no object of it is free."""
        return closed(self.schema_of_arguments(), free_too=bool(self.strict))


class Tool(InnerBody):
    """One entry of `tools`."""

    type: Literal["function"]
    function: Function

    def for_template(self) -> dict[str, Any]:
        """As chat templates expect it."""
        said = (
            {} if self.function.description is None else {"description": self.function.description}
        )
        parameters = self.function.schema_of_arguments()
        function = {"name": self.function.name, **said, "parameters": parameters}
        return {"type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class ToolUse:
    """The tools that one request offers its model, checked."""

    offered: Sequence[Tool]
    """All of them."""
    tools: Sequence[Tool]
    """Those that may be called."""
    choice: ToolMode | NamedTool
    parallel: bool
    """Several calls in one answer are taken."""
    deferred: frozenset[str] = frozenset()
    """Names of tools that may be called, and that the conversation itself describes."""

    @classmethod
    def of(
        cls, tools: Sequence[Tool] | None, choice: ToolChoice | None, parallel: bool | None
    ) -> ToolUse:
        """Tools that are not allowed are not shown to the model either.

        Raises `InvalidRequestError` for tools, or a choice among them, that will not do.
        """
        offered = tools or ()
        _check_tools(offered)
        use = cls(offered, offered, "auto", parallel is not False)
        if isinstance(choice, AllowedTools):
            return use._allowing(choice.allowed_tools)
        if choice == "required" and not offered:
            raise InvalidRequestError("tool_choice", choice, "needs tools")
        if isinstance(choice, NamedTool) and choice.function.name not in use.names:
            name = choice.function.name
            raise InvalidRequestError("tool_choice", name, "must be the name of one of tools")
        return replace(use, tools=() if choice == "none" else offered, choice=choice or "auto")

    def _allowing(self, allowed: AllowedNames) -> ToolUse:
        if not allowed.tools or not allowed.names <= self.names:
            limit = "must be the names of one or more of tools"
            raise InvalidRequestError("tool_choice", sorted(allowed.names), limit)
        tools = [tool for tool in self.offered if tool.function.name in allowed.names]
        return replace(self, tools=tools, choice=allowed.mode)

    @property
    def names(self) -> frozenset[str]:
        return frozenset(tool.function.name for tool in self.tools)

    @property
    def described(self) -> list[dict[str, Any]]:
        """For the chat template."""
        shown = (tool for tool in self.tools if tool.function.name not in self.deferred)
        return [tool.for_template() for tool in shown]

    @property
    def is_free(self) -> bool:
        """The model may call tools or not, in the form it was taught."""
        return bool(self.tools) and self.choice == "auto"

    @property
    def is_forced(self) -> bool:
        """The answer must be a call."""
        return bool(self.tools) and not self.is_free

    def constraint(self) -> StructuredOutputs | None:
        """What makes the answer a call where it must be one. Raises `InvalidRequestError`."""
        if not self.is_forced:
            return None
        if isinstance(self.choice, NamedTool):
            name = self.choice.function.name
            [tool] = [tool for tool in self.tools if tool.function.name == name]
            return _arguments(name, tool.function.schema_of_call())
        schemas = {each.function.name: each.function.schema_of_call() for each in self.tools}
        calls: dict[str, Any] = {
            "type": "array",
            "minItems": 1,
            "items": {
                "anyOf": [
                    _call(name, moved(schema, f"#/items/anyOf/{index}/properties/parameters"))
                    for index, (name, schema) in enumerate(schemas.items())
                ],
            },
        }
        return StructuredOutputs(
            json=calls if self.parallel else {**calls, "maxItems": 1},
            field="tools",
            shown=[*schemas],
            parts=tuple(_arguments(*each) for each in schemas.items()),
        )

    def sampling_fields(self, wanted: StructuredOutputs | None) -> dict[str, Any]:
        """What the tools, and the form that the answer is `wanted` in, ask of `SamplingParams`.

        Raises `InvalidRequestError` where they contradict each other.
        """
        call = self.constraint()
        if call and wanted and wanted.field not in _FORMATS_OF_TEXT:
            raise wanted.refuse("cannot be combined with a tool_choice that forces a call")
        form = call or wanted
        asked: dict[str, Any] = {} if form is None else {"structured_outputs": form}
        if self.is_free:  # some models write the tags around a call as special tokens
            asked["skip_special_tokens"] = False
        return asked

    def without_stops(self, params: SamplingParams) -> SamplingParams:
        """Nothing that is said within a call's JSON ends a call that must be made."""
        return replace(params, stop=(), stop_token_ids=()) if self.is_forced else params

    def ignored_stops(self, **stops: Collection[Any] | None) -> list[Ignored]:
        """Those of the fields, by name, that `without_stops` takes away."""
        reason = "an answer that must be a call ends where the call does"
        given = stops if self.is_forced else {}
        return [Ignored(field, reason) for field, value in given.items() if value]

    def reader(self, engine: AsyncEngine) -> ToolReader:
        """What finds the calls in the answers."""
        if not self.tools:
            return NO_TOOLS
        if isinstance(self.choice, NamedTool):
            # OpenAI's API ends a call that was named with "stop", and one of a free choice, or of
            # any tool that is required, with "tool_calls".
            return ToolReader(partial(ForcedArguments, self.choice.function.name), "stop")
        if self.choice == "required":
            return ToolReader(partial(ForcedCalls, self.names))
        functions = [tool.function for tool in self.tools]
        schemas = {each.name: each.schema_of_arguments() for each in functions}
        begin = partial(begin_reading, engine.tokenizer.tool_format, schemas)
        return ToolReader(begin if self.parallel else lambda: FirstCall(begin()))


def _arguments(name: str, schema: dict[str, Any]) -> StructuredOutputs:
    """The arguments of a call of that tool, told about by its name."""
    return StructuredOutputs(json=schema, field="tools", shown=name)


def _call(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """The schema of a call of that tool."""
    return {
        "type": "object",
        "properties": {
            "name": {"const": name},
            "parameters": arguments,
        },
        "required": ["name", "parameters"],
        "additionalProperties": False,
    }


def _check_tools(tools: Sequence[Tool]) -> None:
    parameters = [tool.function.parameters for tool in tools]
    if has_more_characters(parameters, MAX_PARAMETERS_CHARACTERS):
        limit = f"parameters may have at most {MAX_PARAMETERS_CHARACTERS:,} characters in all"
        raise InvalidRequestError("tools", "more characters", limit)
    seen: set[str] = set()
    for tool in tools:
        name = tool.function.name
        if name in seen:
            raise InvalidRequestError("tools", name, "each must have a name of its own")
        seen.add(name)
        schema = tool.function.schema_of_arguments()
        if is_deeper_than(schema, MAX_SCHEMA_DEPTH):
            raise InvalidRequestError("tools", name, f"parameters may be {DEPTH_LIMIT}")
        if schema["type"] != "object" or not _is_schema(schema):
            limit = "parameters must be the JSON schema of an object"
            raise InvalidRequestError("tools", name, limit)


def _is_schema(schema: Any) -> bool:
    """Looks at types and shapes alone: a schema that is only shown to the model may use any
    keyword."""
    if not isinstance(schema, dict):
        return isinstance(schema, bool)
    types = schema.get("type", [])
    known = all(isinstance(each, str) and each in _TYPES for each in _listed(types))
    properties, required = schema.get("properties", {}), schema.get("required", [])
    if not known or not isinstance(properties, dict) or not isinstance(required, list):
        return False
    inner = [*properties.values(), *_listed(schema.get("items", []))]
    for name in ("anyOf", "oneOf", "allOf"):
        inner += _listed(schema.get(name, []))
    return all(isinstance(each, str) for each in required) and all(map(_is_schema, inner))


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
