"""Schemas closed: objects have the properties that are named, and nothing is made impossible."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from pagoda.engine.closed_schema import closed

X = {"type": "integer"}
SHUT = {"additionalProperties": False}
NAMED = {"type": "object", "properties": {"x": X}}
FREE = {"type": "object"}

CLOSED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "an object": (NAMED, {**NAMED, **SHUT}),
    "an object without a type": ({"properties": {}}, {"properties": {}, **SHUT}),
    "a list of objects": ({"items": NAMED}, {"items": {**NAMED, **SHUT}}),
    "one of several": ({"anyOf": [NAMED, X]}, {"anyOf": [{**NAMED, **SHUT}, X]}),
    "what is referred to": (
        {"$ref": "#/$defs/a", "$defs": {"a": NAMED}},
        {"$ref": "#/$defs/a", "$defs": {"a": {**NAMED, **SHUT}}},
    ),
    "what is referred to without a word on properties": (
        {"$ref": "#/$defs/a", "required": [], "description": "a", **SHUT, "$defs": {"a": NAMED}},
        {
            **{"$ref": "#/$defs/a", "required": [], "description": "a", **SHUT},
            "$defs": {"a": {**NAMED, **SHUT}},
        },
    ),
    "a property that is called properties": (
        {"properties": {"properties": NAMED}},
        {"properties": {"properties": {**NAMED, **SHUT}}, **SHUT},
    ),
}
LEFT: dict[str, dict[str, Any]] = {
    "others are allowed": {**NAMED, "additionalProperties": True},
    "others have a schema": {**NAMED, "additionalProperties": {"type": "string"}},
    "others are required": {**NAMED, "required": ["x", "y"]},
    "others are counted": {**NAMED, "minProperties": 2},
    "put together from two": {"allOf": [NAMED, NAMED]},
    "put together with a reference": {**NAMED, "$ref": "#/$defs/a", "$defs": {"a": NAMED}},
    "put together with one of several": {**NAMED, "anyOf": [NAMED, NAMED]},
    "put together with a reference and what is required": {
        **{"$ref": "#/$defs/a", "$defs": {"a": NAMED}},
        "required": ["y"],
    },
    "put together with one of several and what is required": {
        "required": ["y"],
        "anyOf": [NAMED, NAMED],
    },
    "put together with one of several and others": {
        "additionalProperties": True,
        "oneOf": [NAMED, NAMED],
    },
    "put together with patterns": {"patternProperties": {"^y": X}, "anyOf": [NAMED, NAMED]},
    "put together with a part and a schema of others": {
        "additionalProperties": X,
        "allOf": [NAMED],
    },
    "put together by a condition": {**NAMED, "if": NAMED},
    "values": {"enum": [{"properties": {}}], "default": {"properties": {}}},
    "no objects": {"type": ["string", "null"]},
    "nonsense": {"items": 5, "anyOf": "x", "allOf": None, "properties": [1], "required": 5},
}


@pytest.mark.parametrize("name", CLOSED)
def test_objects_that_name_properties_have_no_others(name: str) -> None:
    schema, wanted = CLOSED[name]
    before = copy.deepcopy(schema)
    assert closed(schema) == wanted
    assert schema == before


@pytest.mark.parametrize("name", LEFT)
def test_what_the_schema_says_itself_stands(name: str) -> None:
    assert closed(LEFT[name], free_too=True) == LEFT[name]


def test_free_objects_are_closed_only_if_that_is_asked_for() -> None:
    assert closed(FREE) == FREE
    assert closed(FREE, free_too=True) == {**FREE, **SHUT}
    assert closed({"items": {"type": ["object", "null"]}}, free_too=True) == {
        "items": {"type": ["object", "null"], **SHUT}
    }
