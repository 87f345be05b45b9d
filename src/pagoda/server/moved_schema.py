"""Schemas that stand in another one, where their references to themselves lead to them still."""

from __future__ import annotations

from typing import Any

_DATA = ("const", "default", "enum", "examples")
"""Keywords whose value is no schema, whatever it looks like."""
_BY_NAME = (
    "$defs",
    "definitions",
    "dependencies",
    "dependentSchemas",
    "patternProperties",
    "properties",
)
"""Keywords whose value has schemas by names of its own."""


def moved(schema: Any, place: str) -> Any:
    """The same schema, for standing at `place`, a JSON pointer behind a #, in another one.

    One with an identifier of its own is returned as it is, alone or within: its references begin
    there wherever it stands. Its depth must be bounded.
    """
    if isinstance(schema, list):
        return [moved(each, place) for each in schema]
    if not isinstance(schema, dict) or isinstance(schema.get("$id"), str):
        return schema
    return {key: _moved_value(key, value, place) for key, value in schema.items()}


def _moved_value(keyword: str, value: Any, place: str) -> Any:
    if keyword in _DATA:
        return value
    if keyword in _BY_NAME and isinstance(value, dict):
        return {name: moved(each, place) for name, each in value.items()}
    if keyword == "$ref" and isinstance(value, str):
        return place + value[1:] if value == "#" or value.startswith("#/") else value
    return moved(value, place)
