"""Constraints in llguidance's own form."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from pagoda.engine.closed_schema import closed
from pagoda.engine.finite import has_finite_answer
from pagoda.engine.gbnf.parser import MAX_RULES, RULES_LIMIT, is_gbnf, lark_of
from pagoda.engine.lark_text import lark_text
from pagoda.engine.schema_numbers import require_followed_numbers
from pagoda.structured import StructuredOutputs

_LARK_TEXT = re.compile(r'"(?:[^"\\\n]|\\.)*"|/(?:[^/\\\n]|\\.)+/|(?://|#)[^\n]*')
"""Texts, regular expressions and comments of a grammar in Lark's notation."""
_LARK_JSON = re.compile(rf"(?P<json>%json\s*)|{_LARK_TEXT.pattern}")
"""The same, and what a schema stands behind."""
_WHITE_SPACE = r" |\n[ \t]{0,20}"
"""Between JSON's tokens: a space, or a line's end and an indentation. No answer goes on in it."""


def source_of(wanted: StructuredOutputs) -> str:
    """The constraint in llguidance's own form. Raises ValueError where it cannot be read."""
    from llguidance import LLMatcher

    if wanted.regex is not None:
        return LLMatcher.grammar_from_regex(wanted.regex)
    if wanted.grammar is not None:
        return LLMatcher.grammar_from_lark(_checked_lark(wanted.grammar))
    if wanted.choice is not None:
        texts = " | ".join(map(lark_text, wanted.choice))
        return LLMatcher.grammar_from_lark(f"start: {texts}")
    _require_finite(_schema(wanted))
    return schema_source(wanted)


def schema_source(wanted: StructuredOutputs) -> str:
    """The same for a JSON schema of which it is known that it has an answer that ends."""
    from llguidance import LLMatcher

    schema = _schema(wanted)
    require_followed_numbers(schema)
    if wanted.disable_additional_properties:
        schema = closed(schema)
    return LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=_style(wanted))


def _require_finite(schema: dict[str, Any]) -> None:
    if not has_finite_answer(schema):
        raise ValueError("a schema must have an answer that ends: it requires itself without end")


def _schema(wanted: StructuredOutputs) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object"}
    return schema if wanted.json is None else json.loads(str(wanted.json))


def _checked_lark(grammar: str) -> str:
    """The grammar in Lark's notation. Raises ValueError where it is too deep for llguidance, which
    descends from rule to rule on the machine's stack."""
    text = lark_of(grammar) if is_gbnf(grammar) else grammar
    outside = _LARK_TEXT.sub("", text)
    if outside.count(":") + outside.count("(") > MAX_RULES:
        raise ValueError(RULES_LIMIT)
    for schema in _schemas_in(text):
        _require_finite(schema)
        require_followed_numbers(schema)
    return text


def _schemas_in(grammar: str) -> Iterator[dict[str, Any]]:
    """The schemas of `%json {…}`; what is no JSON is left to the compiler."""
    decoder, place = json.JSONDecoder(), 0
    while found := _LARK_JSON.search(grammar, place):
        place = found.end()
        if found["json"] is None:
            continue
        try:
            schema, place = decoder.raw_decode(grammar, place)
        except json.JSONDecodeError:
            continue
        if isinstance(schema, dict):
            yield schema


def _style(wanted: StructuredOutputs) -> Any:  # llguidance does not export the type
    # `oneOf` is followed as `anyOf` where it cannot be told that its schemas exclude one another
    style: dict[str, Any] = {"coerce_one_of": True, "whitespace_pattern": _WHITE_SPACE}
    if wanted.disable_any_whitespace:
        style |= {"whitespace_flexible": False, "whitespace_pattern": None}
    return style
