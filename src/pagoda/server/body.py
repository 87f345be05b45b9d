"""What the bodies of requests, and the objects in them, have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain, islice
from typing import Annotated, Any, ClassVar, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    WrapValidator,
    model_validator,
)

from pagoda.errors import InvalidRequestError
from pagoda.server.field_table import FIELDS, FieldRow, Ignored, Treatment
from pagoda.server.inner_body import MOST_UNKNOWN, unknown_field, unknown_within
from pagoda.server.problem_words import WHOLE_TEXT


def _no_lone_surrogate(text: str) -> str:
    # JSON can write half of a surrogate pair, which no encoding of text can.
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise ValueError(WHOLE_TEXT) from None
    return text


Name = TypeVar("Name")
Item = TypeVar("Item")
Many = Annotated[list[Item], Field(fail_fast=True)]
"""A list of which the first wrong item is told, not all of them."""


def _entry_by_entry(given: object, check: Callable[[object], dict[Any, Any]]) -> dict[Any, Any]:
    if not isinstance(given, dict):
        return check(given)
    checked: dict[Any, Any] = {}
    for entry in given.items():
        checked |= check(dict([entry]))
    return checked


ManyNamed = Annotated[dict[Name, Item], WrapValidator(_entry_by_entry)]
"""A mapping of which the first wrong entry is told, not all of them."""

Text = Annotated[str, AfterValidator(_no_lone_surrogate)]


class Body(BaseModel):
    """Strict types; of unknown fields the ones that matter are kept, so that they can be refused.

    Of the others a few names are kept, to tell that they were ignored: all that is in them would
    hold some 25 times its bytes for as long as the request runs.
    """

    model_config = ConfigDict(strict=True, extra="allow")
    looked_at: ClassVar[frozenset[str]] = frozenset(FIELDS)
    """Unknown fields of which something becomes."""
    _unknown: tuple[str, ...] = PrivateAttr(default=())
    """Names of others, the first few."""

    @model_validator(mode="after")
    def _keep_what_matters(self) -> Self:
        unknown = self.model_extra or {}
        dropped = [name for name in unknown if name not in self.looked_at]
        for name in dropped:
            del unknown[name]
        if dropped:  # a body may pass here twice
            self._unknown = tuple(islice(dropped, MOST_UNKNOWN))
        return self

    def refuse_uncovered(self) -> None:
        """Raises `InvalidRequestError` for a field that would change the answer."""
        for row, value in self._asked("refused"):
            raise InvalidRequestError(row.name, value, f"is not covered: {row.reason_beside}")

    def ignored(self) -> list[Ignored]:
        """The fields that ask for something and change nothing."""
        asked = [row for row, _ in self._asked("ignored") if row.is_said]
        here = [Ignored(row.name, row.reason_beside) for row in asked]
        own = (unknown_field(name, type(self).model_fields) for name in self._unknown)
        return [*here, *islice(chain(own, unknown_within(self)), MOST_UNKNOWN)]

    def _asked(self, treatment: Treatment) -> Iterator[tuple[FieldRow, object]]:
        for name, value in (self.model_extra or {}).items():
            row = FIELDS.get(name)
            if row is not None and row.treatment_beside == treatment and row.asks(value):
                yield row, value
