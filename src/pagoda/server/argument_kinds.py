"""Arguments of calls that a model writes as plain text, as JSON of the kinds their schema names.

Rome        string                       "Rome"
5           string                       "5"
5           integer                      5
None        string or null               null
{"x": 1}    object                       {"x": 1}
five        integer                      "five"       what is of no such kind is text
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NoReturn

STRING = frozenset({"string"})
_INNER = ("anyOf", "oneOf", "allOf")
_WORDS = {"true": "true", "false": "false", "null": "null", "none": "null"}
"""How models write them, also as Python does: the templates of some tell them so."""


def kinds_of(name: str, schema: Mapping[str, Any]) -> frozenset[str]:
    """The types of JSON that an argument may have by the `schema` of its tool's arguments.

    Where that does not say, it is a string.
    """
    properties = schema.get("properties")
    named = properties.get(name) if isinstance(properties, Mapping) else None
    kinds: set[str] = set()
    left: list[Any] = [schema.get("additionalProperties") if named is None else named]
    followed: set[str] = set()
    while left:
        each = left.pop()
        if not isinstance(each, Mapping):
            continue
        kinds.update(_own_kinds(each))
        for keyword in _INNER:
            left += _listed(each.get(keyword))
        reference = each.get("$ref")
        if isinstance(reference, str) and reference not in followed:
            followed.add(reference)
            left.append(_within(schema, reference))
    return frozenset(kinds) or STRING


def as_json(text: str, kinds: frozenset[str]) -> str:
    """The JSON of an argument that was written as `text`."""
    bare = text.strip()
    written = _WORDS.get(bare.lower(), bare)
    if kinds == STRING:
        return json.dumps(text, ensure_ascii=False)
    try:
        value = json.loads(written, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return json.dumps(text, ensure_ascii=False)
    is_such = not isinstance(value, str) and kinds & _kinds_of_value(value)
    return written if is_such else json.dumps(text, ensure_ascii=False)


def _own_kinds(schema: Mapping[str, Any]) -> set[str]:
    kinds = {kind for kind in _listed(schema.get("type")) if isinstance(kind, str)}
    values = _listed(schema.get("enum")) + ([schema["const"]] if "const" in schema else [])
    return kinds.union(*map(_kinds_of_value, values))


def _kinds_of_value(value: object) -> set[str]:
    """The types that a schema may give such a value."""
    match value:
        case None:
            return {"null"}
        case bool():
            return {"boolean"}
        case str():
            return {"string"}
        case int():
            return {"integer", "number"}
        case float():
            return {"integer", "number"} if value.is_integer() else {"number"}
        case list():
            return {"array"}
    return {"object"}


def _within(schema: Any, reference: str) -> Any:
    """What a reference to a part of the same schema leads to; None where that is nothing."""
    found = schema
    for step in reference.removeprefix("#/").split("/"):
        key = step.replace("~1", "/").replace("~0", "~")
        found = found.get(key) if isinstance(found, Mapping) else None
    return found


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _refuse(constant: str) -> NoReturn:
    raise ValueError(constant)
