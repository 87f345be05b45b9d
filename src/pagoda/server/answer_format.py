"""How an answer must look, as clients say it: OpenAI's field, vLLM's, and vLLM's older ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from pagoda.engine.closed_schema import closed
from pagoda.errors import InvalidRequestError
from pagoda.server.body import Many
from pagoda.server.inner_body import InnerBody
from pagoda.server.list_bounds import at_most
from pagoda.structured import KINDS, MAX_STRUCTURED_CHOICES, SWITCHES, StructuredOutputs


class JSONSchemaFormat(InnerBody):
    """A schema, which is followed whether `strict` or not. Its name and description change
    nothing."""

    name: str | None = None
    description: str | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None
    """Objects that name no properties have none."""


class ResponseFormat(InnerBody):
    """OpenAI's `response_format`, and llama.cpp's, which has the schema beside the type."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JSONSchemaFormat | None = None
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")
    """The schema of a `json_object`, as llama.cpp has it, or of a `json_schema`."""

    def structured(self) -> StructuredOutputs | None:
        """The constraint; None for plain text. Raises `InvalidRequestError`."""
        field = "response_format"
        if self.type == "text":
            return None
        given = self.json_schema or JSONSchemaFormat(schema=self.schema_)
        if self.type == "json_object" and not given.schema_:
            return StructuredOutputs(json_object=True, field=field)
        if given.schema_ is None:
            raise InvalidRequestError(field, {"type": self.type}, "needs json_schema.schema")
        wanted = StructuredOutputs(json=given.schema_, field=field)
        return replace(wanted, json=closed(given.schema_, free_too=bool(given.strict)))


_NAMES = {
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
    "grammar": "grammar",
    "json_schema": "json",
}
"""Fields of a body that hold nothing but a constraint, and its kind."""


_NO_FALLBACK = "disable_fallback"
"""vLLM's: no other library shall be tried. There is one."""
_NOT_COVERED = {
    "structural_tag": "is not covered: use grammar",
    "whitespace_pattern": "is not covered: use grammar, or disable_any_whitespace for none",
}
"""Other keys that vLLM's `structured_outputs` has."""
_ALL_KEYS = f"takes one of {', '.join(KINDS)}; and {', '.join((*SWITCHES, _NO_FALLBACK))}"


class AnswerFormat(BaseModel):
    """The fields of a body that constrain the answer. At most one of them may be used."""

    model_config = ConfigDict(strict=True)

    response_format: ResponseFormat | None = None
    structured_outputs: dict[str, Any] | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_regex: str | None = None
    guided_choice: Annotated[Many[str], at_most(MAX_STRUCTURED_CHOICES)] | None = None
    guided_grammar: str | None = None
    grammar: str | None = None
    """llama.cpp's name for a grammar."""
    json_schema: dict[str, Any] | None = None
    """llama.cpp's name for a schema."""

    def structured(self) -> StructuredOutputs | None:
        """The constraint, if there is one. Raises `InvalidRequestError`."""
        found = [self._of_response_format(), self._of_structured_outputs()]
        found += [self._under(name, kind) for name, kind in _NAMES.items()]
        given = [each for each in found if each is not None]
        if len(given) > 1:
            raise given[1].refuse(f"cannot be combined with {given[0].field}")
        return given[0] if given else None

    def _of_response_format(self) -> StructuredOutputs | None:
        return None if self.response_format is None else self.response_format.structured()

    def _of_structured_outputs(self) -> StructuredOutputs | None:
        if self.structured_outputs is None:
            return None
        field = "structured_outputs"
        given = {k: v for k, v in self.structured_outputs.items() if v is not None}
        known = {k: v for k, v in given.items() if k in (*KINDS, *SWITCHES)}
        for key, value in given.items():
            if key not in known and key != _NO_FALLBACK and value is not False:
                raise InvalidRequestError(field, key, _NOT_COVERED.get(key, _ALL_KEYS))
        return StructuredOutputs(**known, field=field)

    def _under(self, name: str, kind: str) -> StructuredOutputs | None:
        value = getattr(self, name)
        # llama.cpp's clients send an empty grammar where there is none
        if value is None or (name, value) == ("grammar", ""):
            return None
        return StructuredOutputs(**{kind: value}, field=name)
