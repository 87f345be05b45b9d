"""Schemas of tools that no grammar follows: told with the tool whose schema it is."""

from __future__ import annotations

from typing import Any

import pytest

from pagoda.engine.build import Model
from pagoda.engine.grammar import Grammar, Grammars
from pagoda.errors import InvalidRequestError
from pagoda.server.tool_choice import FunctionName, NamedTool, ToolChoice
from pagoda.server.tools import Function, Tool, ToolUse
from pagoda.structured import MAX_CONSTRAINT_CHARACTERS, MAX_SCHEMA_DEPTH, StructuredOutputs

GOOD = {"properties": {"x": {"$ref": "#/$defs/x"}}, "$defs": {"x": {"type": "integer"}}}
LONG = {"properties": {"x": {"enum": ["x" * (MAX_CONSTRAINT_CHARACTERS // 2)]}}}
NAMED = NamedTool(type="function", function=FunctionName(name="bad"))


def nested(num_objects: int) -> dict[str, Any]:
    """Objects within one another around a number: two levels each."""
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(num_objects):
        schema = {"type": "object", "properties": {"x": schema}}
    return schema


@pytest.fixture(scope="module")
def grammars(tiny_model: Model) -> Grammars:
    return Grammars(tiny_model.tokenizer, tiny_model.tokenizer.vocab_size)


def follow(grammars: Grammars, choice: ToolChoice, **schemas: dict[str, Any]) -> Grammar:
    """Compile what forces a call of one of the tools, each of which takes what its schema says."""
    tools = [
        Tool(type="function", function=Function(name=name, parameters=schema))
        for name, schema in schemas.items()
    ]
    constraint = ToolUse.of(tools, choice, None).constraint()
    assert constraint is not None
    return grammars.compile(constraint)


@pytest.mark.parametrize("choice", ["required", NAMED], ids=["required", "named"])
@pytest.mark.parametrize(
    ("schema", "told"),
    [
        ({"properties": {"x": {"$ref": "#/$defs/x"}}}, "'/$defs/x' does not exist"),
        ({"properties": {"x": {"uniqueItems": True}}}, '["uniqueItems"]'),
        ({"properties": {"x": {"pattern": "("}}}, "unclosed group"),
        ({"properties": {"x": {"enum": ["x" * MAX_CONSTRAINT_CHARACTERS]}}}, "at most 65536"),
    ],
)
def test_what_is_wrong_is_told_of_the_tool_that_it_is_wrong_with(
    schema: dict[str, Any], told: str, choice: ToolChoice, grammars: Grammars
) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        follow(grammars, choice, good=GOOD, bad=schema, other=GOOD)
    assert (refused.value.field, refused.value.value) == ("tools", "bad")
    assert told in refused.value.limit


def test_what_is_too_much_of_several_tools_is_told_of_all(grammars: Grammars) -> None:
    with pytest.raises(InvalidRequestError, match="at most 65536 characters") as refused:
        follow(grammars, "required", a=LONG, b=LONG)
    assert (refused.value.field, refused.value.value) == ("tools", ["a", "b"])


@pytest.mark.parametrize("choice", ["required", NAMED], ids=["required", "named"])
@pytest.mark.parametrize(
    "schema",
    [
        {"$id": "http://x/y", **GOOD},
        {"properties": {"x": {"$ref": "#x"}}, "$defs": {"x": {"$anchor": "x", "type": "integer"}}},
        {"properties": {"x": {"$id": "http://x/y", **GOOD}}},
    ],
    ids=["an identifier", "an anchor", "an identifier within"],
)
def test_a_schema_may_refer_to_itself_by_any_name(
    schema: dict[str, Any], choice: ToolChoice, grammars: Grammars
) -> None:
    followed = follow(grammars, choice, good=GOOD, bad=schema).matcher()
    assert not followed.state.is_error()


@pytest.mark.parametrize("choice", ["required", NAMED], ids=["required", "named"])
def test_a_schema_may_be_as_deep_beside_others_as_alone(
    choice: ToolChoice, grammars: Grammars
) -> None:
    deep = nested(MAX_SCHEMA_DEPTH // 2 - 1)
    followed = follow(grammars, choice, good=GOOD, bad=deep).matcher()
    assert not followed.state.is_error()
    assert not followed.state.is_stopped()


def test_a_schema_that_is_too_deep_is_told_how_levels_are_counted(grammars: Grammars) -> None:
    counted = "each object and list of its JSON is one"
    with pytest.raises(InvalidRequestError, match=counted):
        follow(grammars, "auto", bad=nested(MAX_SCHEMA_DEPTH // 2))
    with pytest.raises(InvalidRequestError, match=counted):
        StructuredOutputs(json=nested(MAX_SCHEMA_DEPTH // 2))
