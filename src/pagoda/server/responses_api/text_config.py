"""How the text of an answer must look: the field `text` of a body."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

from pydantic import Field

from pagoda.errors import InvalidRequestError
from pagoda.server.answer_format import JSONSchemaFormat, ResponseFormat
from pagoda.server.body import Text
from pagoda.server.field_table import FIELDS, Ignored
from pagoda.server.inner_body import InnerBody
from pagoda.server.responses_api.tool_kinds import ToldObject
from pagoda.structured import StructuredOutputs


class TextFormat(InnerBody):
    """A chat's `response_format` in one object."""

    type: Literal["text", "json_object", "json_schema"] = "text"
    name: Text | None = None
    description: Text | None = None
    schema_: ToldObject | None = Field(default=None, alias="schema")
    strict: bool | None = None

    def for_chat(self) -> ResponseFormat:
        """Raises `InvalidRequestError` where the schema is missing."""
        if self.type != "json_schema":
            return ResponseFormat(type=self.type, schema=None)
        if self.schema_ is None:
            given = {"format": {"type": self.type}}
            raise InvalidRequestError("text", given, "needs format.schema itself")
        schema = JSONSchemaFormat(name=self.name, schema=self.schema_, strict=self.strict)
        return ResponseFormat(type=self.type, json_schema=schema, schema=None)


class TextConfig(InnerBody):
    """How the text must look, and how long the client would like it."""

    format: TextFormat | None = None
    verbosity: Text | None = None
    """Changes nothing: no chat template asks for it."""

    def ignored(self) -> list[Ignored]:
        """What asks for something and changes nothing."""
        row = FIELDS["verbosity"]
        return [Ignored("text", row.note, row.name)] if row.asks(self.verbosity) else []

    def structured(self) -> StructuredOutputs | None:
        """The constraint, if there is one. Raises `InvalidRequestError`."""
        if self.format is None:
            return None
        found = self.format.for_chat().structured()
        return None if found is None else replace(found, field="text")

    def told(self) -> dict[str, Any]:
        """As a response repeats it."""
        asked = self.format or TextFormat()
        return {"format": asked.model_dump(by_alias=True, exclude_none=True)}
