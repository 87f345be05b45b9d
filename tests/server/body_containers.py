"""The lists and mappings of a body, read from what `pydantic` checks it by."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from pydantic import BaseModel

from pagoda.server.list_bounds import _PARTS

_ONE_PROMPT = ("prompt", "tokens")
"""Fields of token ids or texts, as many as a body may have values."""


@dataclass(frozen=True)
class Container:
    """A list or a mapping, what is in it checked one by one."""

    kind: str
    field: str
    fails_fast: bool
    around: frozenset[str]
    """Names of the functions that look at it as a whole."""
    in_parts: bool
    """A conversation is around it, which counts its parts."""

    @property
    def is_bounded(self) -> bool:
        is_short = bool(self.around & {"at_most", "_few_parts"})
        if self.kind == "dict":
            return is_short and "_entry_by_entry" in self.around
        counts = is_short or (self.in_parts and self.field in _PARTS)
        return self.fails_fast and (counts or self.field in _ONE_PROMPT)


def containers_in(body: type[BaseModel]) -> list[Container]:
    schema: Any = body.__pydantic_core_schema__
    shared = {each["ref"]: each for each in schema.get("definitions", ())}
    return list(_Walk(shared).into(schema))


@dataclass(frozen=True)
class _Walk:
    """A place in a schema, and what is around it."""

    shared: dict[str, Any]
    field: str = ""
    around: frozenset[str] = frozenset()
    in_parts: bool = False

    def into(self, node: Any) -> Iterator[Container]:
        if isinstance(node, (list, tuple)):
            for each in node:
                yield from self.into(each)
        elif isinstance(node, dict):
            kind = node.get("type")
            if kind == "definition-ref":
                yield from self.into(self.shared[node["schema_ref"]])
            found = self._container(node)
            if found is not None:
                yield found
            yield from self._behind(node)._inner(node)

    def _container(self, node: dict[str, Any]) -> Container | None:
        kind = node.get("type")
        items = {"list": "items_schema", "dict": "values_schema"}.get(str(kind), "")
        if node.get(items, {"type": "any"})["type"] == "any":
            return None
        fails_fast = bool(node.get("fail_fast"))
        return Container(str(kind), self.field, fails_fast, self.around, self.in_parts)

    def _behind(self, node: dict[str, Any]) -> _Walk:
        if node.get("type") in ("list", "dict"):
            return replace(self, around=frozenset())
        if not str(node.get("type")).startswith("function-"):
            return self
        name = getattr(node["function"]["function"], "__qualname__", "").split(".")[0]
        is_conversation = self.in_parts or name == "_few_parts"
        return replace(self, around=self.around | {name}, in_parts=is_conversation)

    def _inner(self, node: dict[str, Any]) -> Iterator[Container]:
        for name, value in node.items():
            if name == "fields":
                for field, each in value.items():
                    yield from replace(self, field=field, around=frozenset()).into(each)
            elif name not in ("metadata", "definitions", "serialization"):
                yield from self.into(value)
