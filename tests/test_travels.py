"""Things travel as docs/travels.md says: both ends of a hop know them, and no other room does."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from test_floors import PACKAGE, SOURCE

TRAVELS = Path(__file__).parent.parent / "docs" / "travels.md"


@dataclass(frozen=True)
class Hop:
    """A thing goes from one module to another, under names that both know."""

    source: str
    target: str
    names: frozenset[str]
    guarded: frozenset[str]
    """Those of the names that only rooms on the thing's way may know."""


def read_hops(text: str) -> dict[str, list[Hop]]:
    """Hops by their thing, as the document's sections tell them."""
    hops: dict[str, list[Hop]] = {}
    for section in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        rows = re.findall(r"^\| `([\w.]+)` \| `([\w.]+)` \| (.+) \|$", section, re.MULTILINE)
        hops[section.splitlines()[0]] = [
            Hop(
                source,
                target,
                frozenset(re.findall(r"`(\w+)`", names)),
                frozenset(re.findall(r"\*\*`(\w+)`\*\*", names)),
            )
            for source, target, names in rows
        ]
    return hops


HOPS = read_hops(TRAVELS.read_text("utf-8"))


@cache
def names_known_to(module: str) -> frozenset[str]:
    """What a module defines or imports, names within functions and for type checkers too."""
    path = SOURCE / PACKAGE / module.replace(".", "/")
    tree = ast.parse(path.with_suffix(".py").read_text("utf-8"))
    known: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PACKAGE):
            known |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ClassDef):
            known.add(node.name)
    return frozenset(known)


def modules() -> list[str]:
    root = SOURCE / PACKAGE
    paths = (path.relative_to(root) for path in root.rglob("*.py"))
    return [".".join(path.with_suffix("").parts) for path in paths]


def room_of(module: str) -> str:
    return module.split(".")[0]


def strangers(hops: list[Hop]) -> dict[str, set[str]]:
    """Modules of rooms that are not on the way, by the guarded name that they know."""
    rooms = {room_of(end) for hop in hops for end in (hop.source, hop.target)}
    guarded = frozenset().union(*(hop.guarded for hop in hops))
    found: dict[str, set[str]] = {}
    for module in modules():
        if room_of(module) not in rooms and room_of(module) != "__init__":
            for name in guarded & names_known_to(module):
                found.setdefault(name, set()).add(module)
    return found


def test_the_document_has_hops_of_all_three() -> None:
    assert list(HOPS) == ["A request", "A block", "A byte of K and V"]
    assert min(len(hops) for hops in HOPS.values()) > 5


@pytest.mark.parametrize(
    "hop", [hop for hops in HOPS.values() for hop in hops], ids=lambda hop: hop.target
)
def test_both_ends_of_a_hop_know_its_names(hop: Hop) -> None:
    for end in (hop.source, hop.target):
        assert hop.names <= names_known_to(end), end


@pytest.mark.parametrize("thing", HOPS)
def test_no_other_room_knows_a_thing(thing: str) -> None:
    assert strangers(HOPS[thing]) == {}


def test_a_room_that_is_not_on_the_way_is_noticed() -> None:
    shorter = [hop for hop in HOPS["A block"] if "execution" not in hop.source + hop.target]
    assert "Batch" in strangers(
        [*shorter, Hop("cache.block", "cache.pool", frozenset(), frozenset({"Batch"}))]
    )
