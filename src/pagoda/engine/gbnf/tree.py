"""Rules of GBNF as trees."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Token:
    """A sign of the grammar's text; a text, a class, a dot or a name is a leaf of the tree."""

    kind: str
    text: str
    position: int


@dataclass(slots=True)
class Item:
    """A leaf or a group, and how often it stands here."""

    what: Token | Choice
    least: int = 1
    most: int | None = 1
    """None: without end."""


@dataclass(slots=True)
class Choice:
    """What stands behind ::= or between parentheses: sequences, one of which is said."""

    sequences: list[list[Item]]


def leaves_of(choice: Choice) -> Iterator[Token]:
    """From left to right. Its depth is that of parentheses."""
    for sequence in choice.sequences:
        for item in sequence:
            if isinstance(item.what, Token):
                yield item.what
            else:
                yield from leaves_of(item.what)
