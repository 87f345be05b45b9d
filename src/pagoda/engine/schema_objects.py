"""What the objects of a JSON schema are: schemas, schemas by name, or data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

NAMED = ("properties", "patternProperties", "$defs", "definitions")
"""Keywords whose value has schemas by names of its own, which are no keywords."""
BY_NAME = (*NAMED, "dependencies", "dependentSchemas")
"""Those, and keywords whose schemas hold where a property of that name is there."""
DATA = ("const", "default", "enum", "examples")
"""Keywords whose value is no schema, whatever it looks like."""


def objects_in(schema: Any) -> Iterator[dict[str, Any]]:
    """All that may be schemas, the whole first: a reference may lead anywhere, into data too."""
    waiting = [schema]
    while waiting:
        each = waiting.pop()
        if isinstance(each, dict):
            yield each
            for keyword, inner in each.items():
                is_by_name = keyword in BY_NAME and isinstance(inner, dict)
                waiting.extend(inner.values() if is_by_name else [inner])
        elif isinstance(each, list):
            waiting.extend(each)
