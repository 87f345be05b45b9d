"""References of a schema that stands in another one."""

from __future__ import annotations

from typing import Any

import pytest

from pagoda.server.moved_schema import moved

PLACE = "#/items/anyOf/1"
OWN = {"$id": "http://x/y", "properties": {"a": {"$ref": "#/$defs/b"}}, "$defs": {"b": {}}}


def test_references_to_a_place_in_it_lead_there_still() -> None:
    schema = {
        "$ref": "#",
        "properties": {"$ref": {"$ref": "#/$defs/a"}, "const": {"items": [{"$ref": "#/$defs/b"}]}},
        "anyOf": [{"not": {"$ref": "#/properties/enum"}}],
    }
    assert moved(schema, PLACE) == {
        "$ref": PLACE,
        "properties": {
            "$ref": {"$ref": f"{PLACE}/$defs/a"},
            "const": {"items": [{"$ref": f"{PLACE}/$defs/b"}]},
        },
        "anyOf": [{"not": {"$ref": f"{PLACE}/properties/enum"}}],
    }


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#anchor"},
        {"$ref": "http://x/y#/z"},
        {"$ref": "other"},
        {"const": {"$ref": "#/z"}},
        {"enum": [{"$ref": "#"}]},
        {"properties": {"a": {"default": {"$ref": "#/z"}, "examples": [{"$ref": "#/z"}]}}},
        OWN,
        {"anyOf": [OWN, {"type": "null"}]},
    ],
)
def test_what_begins_elsewhere_or_is_data_stays(schema: dict[str, Any]) -> None:
    assert moved(schema, PLACE) == schema
