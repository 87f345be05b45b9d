"""Numbers of schemas: answers are held to the ones that are there, and others are refused."""

from __future__ import annotations

import json
from typing import Any

import llguidance
import pytest

from pagoda.engine.grammar_source import source_of
from pagoda.engine.schema_numbers import MAX_WHOLE_NUMBER
from pagoda.structured import StructuredOutputs

BYTES = llguidance.LLTokenizer("byte")
BEYOND = MAX_WHOLE_NUMBER + 1
WHOLE = {"type": "integer"}
INT64 = 2**63 - 1
CHANGED: dict[str, tuple[str, dict[str, Any]]] = {
    "a constant": ("const", {"const": 1234567890123456789}),
    "one of several": ("enum", {"enum": ["a", 1, -BEYOND]}),
    "one within a constant": ("const", {"const": {"x": [BEYOND]}}),
    "one within a property": ("enum", {"properties": {"x": {"enum": [BEYOND]}}}),
    "one that is referred to": ("const", {"$ref": "#/x/y", "x": {"y": {"const": BEYOND}}}),
    "a least": ("minimum", {**WHOLE, "minimum": BEYOND + 1}),
    "the least of 64 bits": ("minimum", {**WHOLE, "minimum": -INT64 - 1}),
    "a largest": ("maximum", {**WHOLE, "maximum": INT64 - 1}),
    "an excluded least": ("exclusiveMinimum", {**WHOLE, "exclusiveMinimum": -BEYOND}),
    "an excluded largest": ("exclusiveMaximum", {**WHOLE, "exclusiveMaximum": INT64}),
}


def accepts(schema: dict[str, Any], value: object) -> bool:
    source = source_of(StructuredOutputs(json=schema))
    matcher = llguidance.LLMatcher(BYTES, source, log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    token_ids = list(json.dumps(value).encode())
    return matcher.try_consume_tokens(token_ids) == len(token_ids) and matcher.is_accepting()


@pytest.mark.parametrize("name", CHANGED)
def test_a_whole_number_that_would_be_changed_is_refused_by_its_keyword(name: str) -> None:
    keyword, schema = CHANGED[name]
    with pytest.raises(ValueError, match=f"^{keyword} may have whole numbers from -9007"):
        source_of(StructuredOutputs(json=schema))
    with pytest.raises(ValueError, match=f"^{keyword} may have"):
        source_of(StructuredOutputs(grammar=f"start: %json {json.dumps(schema)}"))


@pytest.mark.parametrize("number", [MAX_WHOLE_NUMBER, -MAX_WHOLE_NUMBER, 0])
def test_any_other_is_followed_to_the_last_digit(number: int) -> None:
    near = range(number - 2, number + 3)
    taken = {
        "const": [number],
        "minimum": [each for each in near if each >= number],
        "maximum": [each for each in near if each <= number],
        "exclusiveMinimum": [each for each in near if each > number],
        "exclusiveMaximum": [each for each in near if each < number],
    }
    for keyword, expected in taken.items():
        schema = {**WHOLE, keyword: number}
        assert [each for each in near if accepts(schema, each)] == expected, keyword


@pytest.mark.parametrize("number", [BEYOND, -BEYOND])
def test_the_next_float_is_followed_where_it_is_let_in(number: int) -> None:
    near = range(number - 2, number + 3)
    for keyword, expected in (
        ("minimum", [each for each in near if each >= number]),
        ("maximum", [each for each in near if each <= number]),
    ):
        schema = {**WHOLE, keyword: number}
        assert [each for each in near if accepts(schema, each)] == expected, keyword


@pytest.mark.parametrize("bound", [INT64, INT64 + 1, 2**64 - 1, 10**30])
def test_whole_numbers_end_at_64_bits_where_the_maximum_is_that_or_more(bound: int) -> None:
    schema = {**WHOLE, "maximum": bound}
    assert accepts(schema, INT64)
    assert not accepts(schema, INT64 + 1)


def test_names_are_no_keywords() -> None:
    named = {"enum": {**WHOLE, "maximum": INT64}, "const": {**WHOLE, "maximum": INT64}}
    schema = {"type": "object", "properties": named, "$defs": named}
    assert accepts(schema, {"enum": INT64, "const": 1})
    assert not accepts(schema, {"enum": INT64 + 1, "const": 1})


def test_numbers_that_no_answer_is_held_to_are_as_large_as_they_like() -> None:
    assert accepts({**WHOLE, "default": BEYOND, "examples": [BEYOND]}, 7)
    assert accepts({"const": True}, True)
