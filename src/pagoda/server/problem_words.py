"""Refusals of what pydantic does not take, in the words of all other refusals.

Its own words name this server's classes, and repeat themselves for each type that a field may have.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

_MUST_BE = "must be "
WHOLE_TEXT = f"{_MUST_BE}text without half of a surrogate pair"
"""What JSON can write, and no encoding of text can, is refused so."""
_KINDS = {
    "bool_type": "true or false",
    "dict_type": "an object",
    "float_type": "a number",
    "int_from_float": "a whole number",
    "int_type": "a whole number",
    "list_type": "a list",
    "model_attributes_type": "an object",
    "model_type": "an object",
    "string_type": "text",
    "string_unicode": WHOLE_TEXT.removeprefix(_MUST_BE),
}
"""By the kind of a problem."""


def wanted(problems: Iterable[Any]) -> str:
    """What a value must be, for a field of one type or several; each thing once."""
    phrases = list(dict.fromkeys(map(_phrase, problems)))
    kinds = [each.removeprefix(_MUST_BE) for each in phrases if each.startswith(_MUST_BE)]
    others = [each for each in phrases if not each.startswith(_MUST_BE)]
    return " or ".join([*([_MUST_BE + " or ".join(kinds)] if kinds else []), *others])


def _phrase(problem: Any) -> str:
    kind, context = problem["type"], problem.get("ctx", {})
    if kind in _KINDS:
        return _MUST_BE + _KINDS[kind]
    match kind:
        case "missing":
            return "is missing"
        case "literal_error" | "enum":
            return _MUST_BE + str(context["expected"])
        case "string_too_long" | "too_long":
            unit = "characters" if isinstance(problem["input"], str) else "of them"
            return f"at most {context['max_length']:,} {unit}"
        case "greater_than_equal":
            return f"must be at least {context['ge']}"
        case "less_than_equal":
            return f"must be at most {context['le']}"
        case "value_error":
            return str(context["error"])
    return str(problem["msg"])
