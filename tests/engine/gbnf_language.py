"""Small grammars in GBNF, drawn at random, and what they mean: all their texts, one by one."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from random import Random

from pagoda.engine.gbnf.signs import is_negated, ranges_of, said_of
from pagoda.engine.gbnf.tree import Choice, Item, Token

CHARACTERS = "ab="
MAX_LENGTH = 4
TEXTS = [
    "".join(text)
    for length in range(MAX_LENGTH + 1)
    for text in itertools.product(CHARACTERS, repeat=length)
]
"""All that a grammar is asked about."""

Texts = set[str]


def random_grammar(random: Random) -> str:
    """Two to four rules that refer to one another."""
    names = ["root", "x", "y", "z"][: random.randint(2, 4)]
    return "\n".join(f"{name} ::= {_choice(random, names, 0)}" for name in names)


def language(rules: dict[str, Choice]) -> Texts:
    """Those of `TEXTS` that the rule `root` stands for: the least fixed point."""
    texts: dict[str, Texts] = {name: set() for name in rules}
    before = -1
    while (now := sum(map(len, texts.values()))) > before:
        before = now
        for name, rule in rules.items():
            texts[name] |= _of_choice(rule, texts.__getitem__)
    return texts["root"]


def _choice(random: Random, names: list[str], depth: int) -> str:
    return " | ".join(
        " ".join(_item(random, names, depth) for _ in range(random.choice((1, 1, 2, 3))))
        for _ in range(random.choice((1, 2, 2)))
    )


def _item(random: Random, names: list[str], depth: int) -> str:
    kind = random.random()
    if kind < 0.35:
        what = '"' + "".join(random.choices(CHARACTERS, k=random.choice((1, 1, 2, 2, 3)))) + '"'
    elif kind < 0.55:
        what = random.choice(("[ab]", "[a=]", "[^a]", "[b=]", "[a]", "."))
    elif kind < 0.85 or depth == 2:
        what = random.choice(names)
    else:
        what = f"({_choice(random, names, depth + 1)})"
    return what + random.choice(("", "", "", "", "*", "+", "?", "{2}", "{1,2}"))


def _of_choice(choice: Choice, of_rule: Callable[[str], Texts]) -> Texts:
    found: Texts = set()
    for sequence in choice.sequences:
        said = {""}
        for item in sequence:
            said = _joined(said, _of_item(item, of_rule))
        found |= said
    return found


def _of_item(item: Item, of_rule: Callable[[str], Texts]) -> Texts:
    one = (
        _of_token(item.what, of_rule)
        if isinstance(item.what, Token)
        else (_of_choice(item.what, of_rule))
    )
    most = item.least + MAX_LENGTH if item.most is None else item.most
    repeated, found = {""}, set()
    for times in range(most + 1):
        if times >= item.least:
            found |= repeated
        repeated = _joined(repeated, one)
    return found


def _of_token(token: Token, of_rule: Callable[[str], Texts]) -> Texts:
    if token.kind == "name":
        return of_rule(token.text)
    if token.kind == "text":
        return {said_of(token)}
    if token.kind == "any":
        return {*CHARACTERS}
    named = {each for each in CHARACTERS if any(a <= each <= b for a, b in ranges_of(token))}
    return {*CHARACTERS} - named if is_negated(token) else named


def _joined(before: Texts, behind: Texts) -> Texts:
    return {a + b for a in before for b in behind if len(a) + len(b) <= MAX_LENGTH}
