"""What an answer must look like: `StructuredOutputs`, immutable and checked at the door."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pagoda.errors import InvalidRequestError

MAX_CONSTRAINT_CHARACTERS = 64 * 1024
MAX_SCHEMA_DEPTH = 64
"""Objects and lists within one another, in a schema's text."""
DEPTH_LIMIT = f"at most {MAX_SCHEMA_DEPTH} levels deep: each object and list of its JSON is one"
MAX_STRUCTURED_CHOICES = 1024

KINDS = ("json", "json_object", "regex", "choice", "grammar")
SWITCHES = ("disable_additional_properties", "disable_any_whitespace")


@dataclass(frozen=True, slots=True)
class StructuredOutputs:
    """A constraint on the whole answer, by exactly one of its kinds; the names are vLLM's.

    Raises `InvalidRequestError` for a constraint of the wrong type, too large or too deep; what the
    grammar itself says is judged against a model, by the engine's intake.
    """

    json: str | Mapping[str, Any] | None = None
    """A JSON schema. Kept as JSON text."""
    json_object: bool | None = None
    """Any JSON object."""
    regex: str | None = None
    """The whole answer matches it, in the notation of Rust's `regex`: a `\\d` is any script's
    digit, look-around and back-references are not covered."""
    choice: Sequence[str] | None = None
    """One of these texts."""
    grammar: str | None = None
    """A context-free grammar in Lark's notation, where it begins at `start`, or in GBNF, the EBNF
    of llama.cpp, where it begins at `root`."""
    disable_additional_properties: bool = True
    """An object of a schema that names properties has no others, unless the schema says of others
    that they may be there. Without it a small model may never end such an object."""
    disable_any_whitespace: bool = False
    """No white space between JSON's tokens. Otherwise it may be a space, or a line's end with an
    indentation of at most 20."""
    shown: object = field(default=None, compare=False)
    """What errors show in place of the constraint, as the name of the tool whose schema it is."""
    parts: tuple[StructuredOutputs, ...] = field(default=(), compare=False)
    """The schemas that `json` is put together from. What is wrong with one of them by itself is
    told as that one's, and a few levels around them are not counted."""
    field: str = field(default="structured_outputs", compare=False)
    """The name under which the caller gave the constraint, for errors."""

    def __post_init__(self) -> None:
        if self.json_object is False:
            object.__setattr__(self, "json_object", None)
        given = [kind for kind in KINDS if getattr(self, kind) is not None]
        if len(given) != 1:
            names = ", ".join(KINDS)
            raise InvalidRequestError(self.field, given, f"must have exactly one of {names}")
        for switch in SWITCHES:
            value = getattr(self, switch)
            if not isinstance(value, bool):
                raise InvalidRequestError(self.field, {switch: value}, "must be true or false")
        _CHECKS[given[0]](self)

    @property
    def kind(self) -> str:
        """Which one of `KINDS` was given."""
        return next(kind for kind in KINDS if getattr(self, kind) is not None)

    @property
    def num_bytes(self) -> int:
        """Of its text as UTF-8, with those of its parts."""
        given = getattr(self, self.kind)
        of_parts = sum(part.num_bytes for part in self.parts)
        return of_parts + len(("".join(given) if isinstance(given, tuple) else str(given)).encode())

    def named(self, field: str) -> StructuredOutputs:
        """The same, told about as `field` in errors."""
        return replace(self, field=field)

    def refuse(self, limit: str) -> InvalidRequestError:
        """The error that tells what is wrong with the constraint."""
        value = getattr(self, self.kind) if self.shown is None else self.shown
        return InvalidRequestError(self.field, value, limit)

    def _check_json(self) -> None:
        text = self.json if isinstance(self.json, str) else self._written()
        self._check_text(text)
        try:
            schema = json.loads(text)
        except (ValueError, RecursionError):
            raise self.refuse("must be valid JSON") from None
        if not isinstance(schema, dict):
            raise self.refuse("a JSON schema must be an object")
        if not self.parts and is_deeper_than(schema, MAX_SCHEMA_DEPTH):
            raise self.refuse(f"a schema may be {DEPTH_LIMIT}")
        object.__setattr__(self, "json", text)

    def _written(self) -> str:
        if not isinstance(self.json, Mapping):
            raise self.refuse("must be a JSON schema: an object, or its text")
        if has_more_characters(self.json, MAX_CONSTRAINT_CHARACTERS):
            raise self._too_long("more characters")
        try:
            return json.dumps(dict(self.json))
        except (TypeError, ValueError, RecursionError):
            raise self.refuse("must be a JSON schema, not too deep") from None

    def _check_json_object(self) -> None:
        if self.json_object is not True:
            raise self.refuse("must be true or false")

    def _check_regex(self) -> None:
        self._check_text(self.regex)

    def _check_grammar(self) -> None:
        self._check_text(self.grammar)

    def _check_choice(self) -> None:
        limit = f"must be a list of 1 to {MAX_STRUCTURED_CHOICES} texts, none of them empty"
        if not isinstance(self.choice, (list, tuple)):
            raise self.refuse(limit)
        if not 0 < len(self.choice) <= MAX_STRUCTURED_CHOICES:
            raise self.refuse(limit)
        if not all(isinstance(text, str) and text for text in self.choice):
            raise self.refuse(limit)
        self._check_text("".join(self.choice))
        object.__setattr__(self, "choice", tuple(self.choice))

    def _check_text(self, text: object) -> None:
        if not isinstance(text, str) or not text:
            raise self.refuse("must be text, not empty")
        if len(text) > MAX_CONSTRAINT_CHARACTERS:
            raise self._too_long(f"{len(text)} characters")
        try:
            text.encode()
        except UnicodeEncodeError:
            raise self.refuse("must be valid Unicode text") from None

    def _too_long(self, value: str) -> InvalidRequestError:
        limit = f"at most {MAX_CONSTRAINT_CHARACTERS} characters"
        return InvalidRequestError(self.field, self.shown or value, limit)


_CHECKS = {
    "json": StructuredOutputs._check_json,
    "json_object": StructuredOutputs._check_json_object,
    "regex": StructuredOutputs._check_regex,
    "choice": StructuredOutputs._check_choice,
    "grammar": StructuredOutputs._check_grammar,
}


def is_deeper_than(value: object, limit: int) -> bool:
    """JSON's objects and lists stand in one another more than `limit` times."""
    level: list[object] = [value]
    for _ in range(limit):
        containers = [each for each in level if isinstance(each, (dict, list))]
        if not containers:
            return False
        level = [
            inner
            for each in containers
            for inner in (each.values() if isinstance(each, dict) else each)
        ]
    return any(isinstance(each, (dict, list)) for each in level)


def has_more_characters(value: object, most: int) -> bool:
    """JSON's objects, lists and texts have more than `most` characters as they are written.

    Counted are those of texts and names and two for each value, until they are too many: what is
    written has a few more, for quotation marks and escapes.
    """
    left, num = [value], 0
    while left and num <= most:
        each = left.pop()
        num += 2
        if isinstance(each, str):
            num += len(each)
        elif isinstance(each, int):
            num += each.bit_length() // 4  # no more than its digits
        elif isinstance(each, Mapping):
            num += sum(len(name) for name in each if isinstance(name, str))
            left.extend(each.values())
        elif isinstance(each, (list, tuple)):
            left.extend(each)
    return num > most
