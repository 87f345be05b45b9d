"""Objects of options within a body, and what is said of fields that nobody knows."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator
from itertools import islice
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, ModelWrapValidatorHandler, PrivateAttr, model_validator

from pagoda.server.field_table import Ignored

MOST_UNKNOWN = 8
_MOST_CHARACTERS = 32
"""Of the name of an unknown field, to be repeated."""


class InnerBody(BaseModel):
    """Strict types; of unknown fields that say something the first few names are kept."""

    model_config = ConfigDict(strict=True)
    _unknown: tuple[str, ...] = PrivateAttr(default=())

    @model_validator(mode="wrap")
    @classmethod
    def _keep_unknown(cls, given: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        made = handler(given)
        if isinstance(given, dict):
            known = cls._names()
            unknown = (name for name, value in given.items() if value is not None)
            made._unknown = tuple(
                islice((name for name in unknown if name not in known), MOST_UNKNOWN)
            )
        return made

    @classmethod
    def _names(cls) -> Collection[str]:
        return {field.alias or name for name, field in cls.model_fields.items()}

    def unknown_fields(self, place: str) -> Iterator[Ignored]:
        """Those of this object, which stands at `place` in a body, and of others within it."""
        for name in self._unknown:
            yield unknown_field(name, self._names(), f"{place}.")
        yield from unknown_within(self, f"{place}.")


def unknown_within(body: BaseModel, prefix: str = "") -> Iterator[Ignored]:
    """The unknown fields of the objects that the fields of `body` hold, or lists of them."""
    for name in type(body).model_fields:
        value = getattr(body, name)
        if isinstance(value, InnerBody):
            yield from value.unknown_fields(prefix + name)
        elif isinstance(value, list) and value and isinstance(value[0], BaseModel):
            for index, each in enumerate(value):
                if isinstance(each, InnerBody):
                    yield from each.unknown_fields(f"{prefix}{name}[{index}]")


def unknown_field(name: str, known: Collection[str], prefix: str = "") -> Ignored:
    """What is told of a field, with the one of `known` that was probably meant."""
    if len(name) > _MOST_CHARACTERS:
        return Ignored(f"{prefix}{name[:_MOST_CHARACTERS]}…", "there is no such field")
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"; did you mean {close[0]}?" if close else ""
    return Ignored(prefix + name, f"there is no such field{hint}")
