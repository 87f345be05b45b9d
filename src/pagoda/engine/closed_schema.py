"""JSON schemas closed: their objects have no properties but those that are named.

A schema that says nothing of `additionalProperties` allows any. A small model then goes on
inventing keys, the same ones too, until its answer is cut.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from pagoda.engine.schema_objects import NAMED

_INNER = ("items", "prefixItems", "additionalProperties", "contains", "allOf", "anyOf", "oneOf")
"""Keywords whose value is a schema, or a list of them."""
_PARTS = ("$ref", "allOf", "anyOf", "oneOf")
"""Keywords that say which properties an object has in schemas of their own."""


def closed(schema: dict[str, Any], *, free_too: bool = False) -> dict[str, Any]:
    """`schema`, where objects that name properties have no others.

    What the schema itself says of others stands. An object that names no properties stays free, or
    is empty if `free_too`. A schema that puts one object together from several, as `allOf` can, is
    returned as it is: a part that is closed would forbid the others. Its depth must be bounded.
    """
    result = copy.deepcopy(schema)
    schemas = list(schemas_in(result))
    if any(map(_is_composed, schemas)):
        return schema
    for each in schemas:
        if _names_properties(each) or (free_too and _is_object(each)):
            _close(each)
    return result


def _close(schema: dict[str, Any]) -> None:
    """In place, unless that would contradict what the schema says."""
    named = schema.get("properties", {})
    required = schema.get("required", [])
    if "minProperties" in schema or not isinstance(named, dict) or not isinstance(required, list):
        return
    if all(isinstance(name, str) and name in named for name in required):
        schema.setdefault("additionalProperties", False)


def schemas_in(schema: Any) -> Iterator[dict[str, Any]]:
    """The schema, and those inside it. Its depth must be bounded."""
    if not isinstance(schema, dict):
        return
    yield schema
    for keyword in NAMED:
        by_name = schema.get(keyword)
        if isinstance(by_name, dict):
            for each in by_name.values():
                yield from schemas_in(each)
    for keyword in _INNER:
        inner = schema.get(keyword)
        for each in inner if isinstance(inner, list) else [inner]:
            yield from schemas_in(each)


def _is_composed(schema: dict[str, Any]) -> bool:
    all_of = schema.get("allOf")
    has_several = isinstance(all_of, list) and len(all_of) > 1
    num_parts = sum(keyword in schema for keyword in _PARTS)
    has_several |= num_parts + _speaks_of_properties(schema) > 1
    return has_several or "if" in schema or "dependentSchemas" in schema


def _speaks_of_properties(schema: dict[str, Any]) -> bool:
    """It has a word on them itself, and not that there are no others."""
    others = schema.get("additionalProperties", False)
    return _names_properties(schema) or bool(schema.get("required")) or others is not False


def _names_properties(schema: dict[str, Any]) -> bool:
    return "properties" in schema or "patternProperties" in schema


def _is_object(schema: dict[str, Any]) -> bool:
    kinds = schema.get("type")
    return kinds == "object" or (isinstance(kinds, list) and "object" in kinds)
