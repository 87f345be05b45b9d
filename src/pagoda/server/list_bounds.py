"""How long lists may be, which is looked at before anything that is in them.

What is in a list is checked one by one, so a short body of many would keep the server from all
others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, TypeVar

from pydantic import BeforeValidator
from pydantic_core import PydanticCustomError

from pagoda.server.body import Many

MAX_PARTS = 4096
"""Messages, or items, of one conversation and the parts of them, together."""
_PARTS = ("content", "output", "summary", "tool_calls")
"""Fields of messages, items and blocks that are lists of more."""


def at_most(most: int) -> BeforeValidator:
    """Refuses a longer list or mapping."""

    def check(given: object) -> object:
        if isinstance(given, (list, dict)) and len(given) > most:
            raise _too_many("at most {most} of them, and here are {num}", len(given), most)
        return given

    return BeforeValidator(check)


def _few_parts(given: object) -> object:
    num = _num_parts(given) if isinstance(given, list) else 0
    if num > MAX_PARTS:
        limit = "at most {most} with the parts of their contents, and here are {num}"
        raise _too_many(limit, num, MAX_PARTS)
    return given


def _num_parts(given: list[Any]) -> int:
    """What a list has in it, with what is in the lists of that; or some number above the bound."""
    lists: Sequence[list[Any]] = [given]
    num = 0
    while lists and num <= MAX_PARTS:
        num += sum(map(len, lists))
        if num <= MAX_PARTS:
            lists = [inner for each in lists for entry in each for inner in _lists_in(entry)]
    return num


def _lists_in(entry: object) -> list[list[Any]]:
    if not isinstance(entry, dict):
        return []
    return [entry[name] for name in _PARTS if isinstance(entry.get(name), list)]


def _too_many(limit: str, num: int, most: int) -> PydanticCustomError:
    return PydanticCustomError("too_many", limit, {"num": f"{num:,}", "most": f"{most:,}"})


Item = TypeVar("Item")
FewParts = Annotated[Many[Item], BeforeValidator(_few_parts)]
"""A conversation, or what stands for one: at most `MAX_PARTS`."""
