"""Whether a JSON schema has an answer that ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from pagoda.engine.schema_objects import objects_in

MAX_REFERENCES = 256
"""How many different references one schema may have."""
MAX_VISITS = 200_000
"""How many schemas within a schema are looked at: they take a tenth of a second or two."""
MAX_LEVELS = 1500
"""Objects and lists within one another, over all that is referred to: llguidance descends into it
on the machine's stack, from reference to reference."""
_IDENTIFIERS = ("$id", "id")
"""What a schema's identifier is called; the second one in its oldest dialect."""


def has_finite_answer(schema: dict[str, Any]) -> bool:
    """Whether something of finite length can fulfil `schema`, as far as its references go.

    A schema that requires itself has none: {"properties": {"x": {"$ref": "#"}}, "required": ["x"]}.
    What else can make a schema impossible is not looked at. References by anything but a place, and
    those that lead nowhere, are left to the compiler: they are taken to end, and to be as deep as
    the whole. Raises ValueError for more than `MAX_REFERENCES` references or more than
    `MAX_LEVELS` levels, and for a schema that takes more than `MAX_VISITS` looks to judge.
    """
    visits = iter(range(MAX_VISITS))
    targets = {**_targets(schema), "#": schema}
    looks = iter(range(MAX_VISITS))
    whole = _num_levels(schema, looks)
    levels = (whole if each is None else _num_levels(each, looks) for each in targets.values())
    if sum(levels) > MAX_LEVELS:
        raise ValueError(f"a schema may have at most {MAX_LEVELS} levels, with its references")
    finite: set[str] = set()
    num_before = -1
    # The least fixed point: what ends without any reference, then what ends because of that, …
    while len(finite) > num_before:
        num_before = len(finite)
        for name, target in targets.items():
            if name not in finite and _ends(target, finite.__contains__, visits):
                finite.add(name)
    return "#" in finite


def _targets(schema: dict[str, Any]) -> dict[str, Any]:
    """What is referred to, by name; None for what may be anywhere.

    A schema within that has an identifier of its own makes all places relative to it. Raises
    ValueError for too many.
    """
    objects = list(objects_in(schema))
    names = {each["$ref"]: None for each in objects if isinstance(each.get("$ref"), str)}
    if len(names) > MAX_REFERENCES:
        raise ValueError(f"a schema may have at most {MAX_REFERENCES} different references")
    if any(isinstance(each.get(key), str) for each in objects[1:] for key in _IDENTIFIERS):
        return names
    return {name: _target(schema, name) for name in names}


def _target(schema: dict[str, Any], name: str) -> Any:
    """What `name` points to, as a JSON pointer (RFC 6901) behind a #.

    None where nothing is there, and for an anchor or an address.
    """
    first, *parts = name.split("/")
    place: Any = schema if first == "#" else None
    for part in parts:
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(place, dict) and key in place:
            place = place[key]
        elif isinstance(place, list) and key.isdecimal() and int(key) < len(place):
            place = place[int(key)]
        else:
            return None
    return place


def _num_levels(schema: Any, visits: Iterator[int]) -> int:
    """Objects and lists within one another; takes one of `visits` for each."""
    level, num_levels = [schema], 0
    while level:
        containers = [each for each in level if isinstance(each, (dict, list))]
        for _ in containers:
            _take_visit(visits)
        num_levels += bool(containers)
        level = [
            inner
            for each in containers
            for inner in (each.values() if isinstance(each, dict) else each)
        ]
    return num_levels


def _take_visit(visits: Iterator[int]) -> None:
    if next(visits, None) is None:
        raise ValueError("a schema may not refer to itself in so many ways")


def _ends(schema: Any, is_finite: Callable[[str], bool], visits: Iterator[int]) -> bool:
    """Whether `schema` has a finite answer, given which references have; takes one of `visits`."""
    _take_visit(visits)
    if not isinstance(schema, dict):
        return schema is not False
    reference = schema.get("$ref")
    if isinstance(reference, str) and not is_finite(reference):
        return False
    if not all(_ends(each, is_finite, visits) for each in _list(schema.get("allOf"))):
        return False
    for name in ("anyOf", "oneOf"):
        options = _list(schema.get(name))
        if options and not any(_ends(each, is_finite, visits) for each in options):
            return False
    return _may_be_other(schema) or all(
        _ends(each, is_finite, visits) for each in _inevitable(schema)
    )


def _may_be_other(schema: dict[str, Any]) -> bool:
    """The answer need be neither an object nor a list."""
    kinds = schema.get("type", "null")
    return any(kind not in ("object", "array") for kind in _list(kinds) or [kinds])


def _inevitable(schema: dict[str, Any]) -> list[Any]:
    """The schemas inside that every object and list of this schema must hold."""
    properties = schema.get("properties")
    required = _list(schema.get("required"))
    inside = []
    if isinstance(properties, dict):
        inside = [properties[n] for n in required if isinstance(n, str) and n in properties]
    least = schema.get("minItems", 0)
    if isinstance(least, int) and least > 0:
        first = _list(schema.get("prefixItems"))
        inside += first[:least]
        if least > len(first) and "items" in schema:
            inside.append(schema["items"])
    return inside


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
