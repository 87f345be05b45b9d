"""How the text of an answer must look: the field `text` of a body."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from pagoda.errors import InvalidRequestError
from pagoda.server.answer_format import JSONSchemaFormat, ResponseFormat
from pagoda.server.body import Text
from pagoda.server.responses_api.tool_kinds import ToldObject
from pagoda.structured import StructuredOutputs


class TextFormat(BaseModel):
    """A chat's `response_format` in one object."""

    model_config = ConfigDict(strict=True)

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
            raise InvalidRequestError("text", {"type": self.type}, "needs a schema")
        schema = JSONSchemaFormat(name=self.name, schema=self.schema_, strict=self.strict)
        return ResponseFormat(type=self.type, json_schema=schema, schema=None)


class TextConfig(BaseModel):
    """`verbosity` changes nothing: no chat template asks for it."""

    model_config = ConfigDict(strict=True)

    format: TextFormat | None = None

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
