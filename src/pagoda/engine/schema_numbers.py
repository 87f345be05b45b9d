"""Numbers of a JSON schema: which ones an answer can be held to.

llguidance reads every number as a float of 64 bits. A whole number of more than 53 bits may become
a neighbour there, and the answer would be one that the schema does not allow.
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from pagoda.engine.schema_objects import objects_in

MAX_MULTIPLES = 20_000
"""All `multipleOf` of a schema added up, their points left out: an automaton that llguidance makes
has a state for each."""
MAX_WHOLE_NUMBER = 2**53 - 1
"""Up to here no other whole number is read as the same float."""
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_LARGEST_INT64 = 2**63 - 1
"""llguidance's own integers end there: a `maximum` of it or more is one of it."""


def require_followed_numbers(schema: dict[str, Any]) -> None:
    """Raises ValueError, which names the keyword, for numbers that cannot be followed.

    All objects count, wherever they stand: a reference may lead to any.
    """
    total = 0
    for each in objects_in(schema):
        total += _num_multiples(each)
        for keyword, number in _whole_numbers(each):
            if abs(number) > MAX_WHOLE_NUMBER:
                limit = f"whole numbers from -{MAX_WHOLE_NUMBER} to {MAX_WHOLE_NUMBER}"
                raise ValueError(f"{keyword} may have {limit}: others would be changed")
    if total > MAX_MULTIPLES:
        raise ValueError(f"multipleOf may add up to at most {MAX_MULTIPLES:,} in a schema")


def _whole_numbers(schema: dict[str, Any]) -> Iterator[tuple[str, int]]:
    """Those that an answer is held to and that may be changed, each with its keyword."""
    for keyword in _BOUNDS:
        bound = schema.get(keyword)
        if isinstance(bound, int) and not _is_followed(keyword, bound):
            yield keyword, bound
    for keyword in ("const", "enum"):
        waiting = [schema.get(keyword)]
        while waiting:
            each = waiting.pop()
            if isinstance(each, int):
                yield keyword, each
            elif isinstance(each, list | dict):
                waiting.extend(each.values() if isinstance(each, dict) else each)


def _is_followed(keyword: str, bound: int) -> bool:
    """It is as good as no bound, or one more than `MAX_WHOLE_NUMBER` that is let in itself."""
    if keyword == "maximum" and bound >= _LARGEST_INT64:
        return True
    return keyword in ("minimum", "maximum") and abs(bound) == MAX_WHOLE_NUMBER + 1


def _num_multiples(schema: dict[str, Any]) -> int:
    """The `multipleOf` of a schema as a whole number: 25 of 0.25."""
    divisor = schema.get("multipleOf")
    if isinstance(divisor, bool) or not isinstance(divisor, int | float):
        return 0
    digits = Decimal(str(divisor)).as_tuple()
    if isinstance(digits.exponent, str):  # not finite: llguidance says so
        return 0
    number = int("".join(map(str, digits.digits)))
    return number * 10 ** min(digits.exponent, 9) if digits.exponent > 0 else number
