"""What the bodies of requests, and the objects in them, have in common."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from pagoda.errors import InvalidRequestError
from pagoda.server.field_table import FIELDS, FieldRow, Ignored, Treatment


def _no_lone_surrogate(text: str) -> str:
    # JSON can write half of a surrogate pair, which no encoding of text can.
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise ValueError("half of a surrogate pair") from None
    return text


Item = TypeVar("Item")
Many = Annotated[list[Item], Field(fail_fast=True)]
"""A list of which the first wrong item is told, not all of them."""

Text = Annotated[str, AfterValidator(_no_lone_surrogate)]


class Body(BaseModel):
    """Strict types; unknown fields are kept, so that the ones that matter can be refused."""

    model_config = ConfigDict(strict=True, extra="allow")

    def refuse_uncovered(self) -> None:
        """Raises `InvalidRequestError` for a field that would change the answer."""
        for row, value in self._asked("refused"):
            raise InvalidRequestError(row.name, value, f"is not covered: {row.reason_beside}")

    def ignored(self) -> list[Ignored]:
        """The fields that ask for something and change nothing."""
        asked = [row for row, _ in self._asked("ignored") if row.is_said]
        return [Ignored(row.name, row.reason_beside) for row in asked]

    def _asked(self, treatment: Treatment) -> Iterator[tuple[FieldRow, object]]:
        for name, value in (self.model_extra or {}).items():
            row = FIELDS.get(name)
            if row is not None and row.treatment_beside == treatment and row.asks(value):
                yield row, value
