"""The tables of `docs/python.md`: public classes as their source has them."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from dataclasses import MISSING, Field, fields, is_dataclass
from types import FunctionType
from typing import Any

from pagoda.limits import Real, Whole


def fields_of(kind: type) -> str:
    """A dataclass, a row a field: its type, its default, what it means; then its properties."""
    assert is_dataclass(kind), kind
    said = _said_of_attributes(kind)
    lines = ["| field | type | default | |", "|---|---|---|---|"]
    for field in fields(kind):
        meaning = said.get(field.name) or str(field.metadata.get("flag", ""))
        words = " ".join(filter(None, (meaning, _range(field.metadata.get("limit")))))
        lines.append(f"| `{field.name}` | {_code(field.type)} | {_default(field)} | {words} |")
    for name, value in vars(kind).items():
        if isinstance(value, property) and not name.startswith("_"):
            returned = _code(inspect.get_annotations(value.fget).get("return", ""))
            lines.append(f"| `{name}` | {returned} | | {_first_sentences(value.fget)} |")
    return "\n".join(lines)


def methods_of(kind: type, *, is_made: bool = True) -> str:
    """A class, a section a public method or property: its signature and all that its docstring
    says.

    Its own call is left out where nobody makes it by that, `is_made` says.
    """
    parts = []
    for name, value in vars(kind).items():
        function = value.__func__ if isinstance(value, (classmethod, staticmethod)) else value
        is_shown = is_made if name == "__init__" else not name.startswith("_")
        if isinstance(function, FunctionType) and is_shown:
            called = kind.__name__ if name == "__init__" else f"{kind.__name__}.{name}"
            awaited = "await " if inspect.iscoroutinefunction(function) else ""
            says = inspect.getdoc(function) or ""
            parts.append(f"```python\n{awaited}{called}{_signature(function)}\n```\n\n{says}")
        elif isinstance(value, property) and not name.startswith("_"):
            returned = inspect.get_annotations(value.fget).get("return", "")
            says = inspect.getdoc(value) or ""
            parts.append(f"```python\n{kind.__name__}.{name}: {returned}\n```\n\n{says}")
    return "\n\n".join(parts)


def _signature(function: FunctionType) -> str:
    """Without `self` and `cls`; one parameter a line where there are many."""
    signature = inspect.signature(function)
    lines, is_keyword_only = [], False
    for name, parameter in signature.parameters.items():
        if name not in ("self", "cls"):
            if parameter.kind is parameter.KEYWORD_ONLY and not is_keyword_only:
                lines.append("*")
                is_keyword_only = True
            lines.append(_parameter(parameter))
    returned = "" if function.__name__ == "__init__" else f" -> {signature.return_annotation}"
    short = f"({', '.join(lines)}){returned}"
    if len(short) <= 80:
        return short
    return "(\n" + "".join(f"    {line},\n" for line in lines) + f"){returned}"


def _parameter(parameter: inspect.Parameter) -> str:
    stars = "**" if parameter.kind is parameter.VAR_KEYWORD else ""
    default = "" if parameter.default is parameter.empty else f" = {parameter.default!r}"
    if is_dataclass(parameter.default):
        default = f" = {type(parameter.default).__name__}()"
    return f"{stars}{parameter.name}: {parameter.annotation}{default}"


def _said_of_attributes(kind: type) -> dict[str, str]:
    """What the string after each attribute of a class says, on one line."""
    [body] = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(body, ast.ClassDef), kind
    said = {}
    for attribute, after in zip(body.body, body.body[1:], strict=False):
        is_text = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
        if isinstance(attribute, ast.AnnAssign) and is_text:
            assert isinstance(attribute.target, ast.Name), kind
            said[attribute.target.id] = _on_one_line(after.value.value)  # type: ignore[attr-defined]
    return said


def _range(limit: object) -> str:
    """The values that a limit allows."""
    match limit:
        case Whole(low, high):
            return f"{low} to {_power(high)}."
        case Real(low, high, above_low):
            return f"{'Above ' if above_low else ''}{low:g} to {high:g}."
        case _:
            return ""


def _power(number: int) -> str:
    """A number of many digits, as a power of two less one if it is that."""
    is_long = number >= 2**20 and (number + 1).bit_count() == 1
    return f"2^{(number + 1).bit_length() - 1} - 1" if is_long else str(number)


def _first_sentences(function: Any) -> str:
    return _on_one_line((inspect.getdoc(function) or "").partition("\n\n")[0])


def _on_one_line(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip().replace("|", r"\|")


def _code(annotation: object) -> str:
    return "`" + str(annotation).replace("|", r"\|") + "`"


def _default(field: Field[Any]) -> str:
    if field.default is not MISSING:
        return f"`{field.default!r}`"
    return f"`{field.default_factory()!r}`" if field.default_factory is not MISSING else ""
