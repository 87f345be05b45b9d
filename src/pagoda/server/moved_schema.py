"""Schemas that stand in another one, where their references to themselves lead to them still."""

from __future__ import annotations

from typing import Any

from pagoda.engine.schema_objects import BY_NAME, DATA


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
    if keyword in DATA:
        return value
    if keyword in BY_NAME and isinstance(value, dict):
        return {name: moved(each, place) for name, each in value.items()}
    if keyword == "$ref" and isinstance(value, str):
        return place + value[1:] if value == "#" or value.startswith("#/") else value
    return moved(value, place)
