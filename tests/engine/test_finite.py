"""Schemas that have an answer which ends, however they refer to their parts."""

from __future__ import annotations

from typing import Any

import pytest

from engine.test_grammar import nested_in
from pagoda.engine.finite import has_finite_answer

FLAG = {"type": "boolean"}
NAMES: dict[str, dict[str, Any]] = {
    "an anchor": {"$ref": "#flag", "$defs": {"x": {"$anchor": "flag", **FLAG}}},
    "an identifier": {
        "$id": "http://x/all",
        "$ref": "flag",
        "$defs": {"x": {"$id": "flag", **FLAG}},
    },
    "an address": {"$id": "http://x/all", "$ref": "http://x/all#/$defs/x", "$defs": {"x": FLAG}},
    "a place": {"$ref": "#/$defs/x", "$defs": {"x": FLAG}},
    "a place within a schema that has an identifier": {
        "properties": {
            "all": {"$id": "http://x/all", "$ref": "#/$defs/x", "$defs": {"x": FLAG}},
        },
        "required": ["all"],
        "$defs": {"x": {"$ref": "#/$defs/x"}},
        "type": "object",
    },
}


@pytest.mark.parametrize("name", NAMES)
def test_what_is_referred_to_by_any_name_may_end(name: str) -> None:
    assert has_finite_answer(NAMES[name])


@pytest.mark.parametrize(
    ("prefix", "identifier"),
    [("#/$defs/", None), ("#", "$anchor"), ("http://x/all#/$defs/", None), ("", "$id")],
    ids=["places", "anchors", "addresses", "identifiers"],
)
def test_references_one_behind_another_may_not_be_too_deep_by_any_name(
    prefix: str, identifier: str | None
) -> None:
    parts = {
        f"a{index}": {
            **nested_in(20, {"$ref": f"{prefix}a{index + 1}"}),
            **({identifier: f"a{index}"} if identifier else {}),
        }
        for index in range(200)
    }
    schema = {"$id": "http://x/all", "$ref": f"{prefix}a0", "$defs": {**parts, "a200": FLAG}}
    with pytest.raises(ValueError, match="levels, with its references"):
        has_finite_answer(schema)


def test_a_place_that_means_another_one_within_a_schema_counts_as_the_deepest() -> None:
    deep = {"$id": "http://x/inner", "$defs": {"x": nested_in(50, {})}}
    schema = {
        "anyOf": [{"$ref": f"#/$defs/x/{'items/' * index}not"} for index in range(40)],
        "$defs": {"x": FLAG, "inner": deep},
    }
    with pytest.raises(ValueError, match="levels, with its references"):
        has_finite_answer(schema)
