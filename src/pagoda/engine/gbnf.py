"""GBNF, the grammars of llama.cpp and vLLM's EBNF, in the notation of Lark that llguidance reads.

    root ::= "yes" | "no" reason?        # comments; "a", [a-z], ., (…), *, +, ?, {2,3}, |
    reason ::= " because " [a-z ]{1,40}

A rule that leads to no rule that is recursive becomes a token of Lark's, which is matched as one
regular expression.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from pagoda.engine.gbnf_signs import NO_REPEATS, in_lark

MAX_DEPTH = 64
"""Parentheses within one another."""

_RULE = re.compile(r"^[ \t]*[A-Za-z][\w-]*[ \t\r\n]*::=", re.MULTILINE)
_TOKEN = re.compile(
    r"""(?P<skipped>[ \t\r\n]+|\#[^\r\n]*)
    |(?P<text>"(?:[^"\\\r\n]|\\.)*")
    |(?P<characters>\[\^?(?:[^\]\\\r\n]|\\.)*\])
    |(?P<any>\.)
    |(?P<name>[A-Za-z][\w-]*)
    |(?P<defined>::=)
    |(?P<repeats>[*+?]|\{[ ]*\d{1,6}[ ]*(?:,[ ]*(?:\d{1,6})?[ ]*)?\})
    |(?P<mark>[|()])""",
    re.VERBOSE | re.ASCII,
)


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    position: int


@dataclass(slots=True)
class _Rule:
    """A rule's alternatives in Lark's notation, its references still by their names here."""

    parts: list[str] = field(default_factory=list)
    references: dict[int, _Token] = field(default_factory=dict)
    """By their places in `parts`."""

    open_places: list[int] = field(default_factory=list)
    """Of each ( that has no ) yet."""
    _item_place: int = 0
    """Where that begins which may be repeated."""

    def add(self, token: _Token, part: str) -> None:
        """Go on with a token, which is `part` in Lark's notation."""
        place = len(self.parts)
        if token.kind == "name":
            self.references[place] = token
        if token.kind == "(":
            self.open_places.append(place)
        if token.kind != "repeats":
            self._item_place = self.open_places.pop() if token.kind == ")" else place
        if part == NO_REPEATS:
            self._empty_item()
        else:
            self.parts.append(part)

    def _empty_item(self) -> None:
        self.parts[self._item_place :] = ['""']
        while self.references and next(reversed(self.references)) >= self._item_place:
            self.references.popitem()


def is_gbnf(text: str) -> bool:
    """Some line begins a rule as GBNF does, which Lark has no such sign for."""
    return _RULE.search(text) is not None


def lark_of(text: str) -> str:
    """The same grammar for llguidance. Raises `ValueError` naming line and column."""
    rules = _Parser(text).rules()
    if "root" not in rules:
        raise ValueError("a grammar needs a rule named root")
    flat = _without_recursion(rules)
    names = {name: f"{'R' if name in flat else 'r'}{n}" for n, name in enumerate(rules)}
    lines = [f"start: {names['root']}"]
    for name, rule in rules.items():
        parts = list(rule.parts)
        for place, token in rule.references.items():
            parts[place] = names[token.text]
        lines.append(f"{names[name]}: {' '.join(parts)}")
    return "\n".join(lines)


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = [token for token in _tokens_of(text) if token.kind != "skipped"]
        self._at = 0

    def rules(self) -> dict[str, _Rule]:
        rules: dict[str, _Rule] = {}
        while self._next.kind != "end":
            name = self._take("name", "a rule's name")
            self._take("defined", "::=")
            if name.text in rules:
                raise _error(self._text, name.position, f"there are two rules named {name.text}")
            rules[name.text] = self._rule()
        for token in self._tokens:
            if token.kind == "name" and token.text not in rules:
                raise _error(self._text, token.position, f"there is no rule named {token.text}")
        return rules

    def _rule(self) -> _Rule:
        """What stands behind ::=, up to the next rule. Parentheses are kept, not recursed."""
        rule, before = _Rule(), "|"
        while not self._is_at_end_of_rule():
            token = self._next
            self._at += 1
            if token.kind == "(" and len(rule.open_places) == MAX_DEPTH:
                raise _error(self._text, token.position, f"more than {MAX_DEPTH} levels")
            if token.kind == ")" and not rule.open_places:
                raise _error(self._text, token.position, "no ( belongs to this )")
            if token.kind == "defined":
                raise _error(self._text, token.position, "::= needs a rule's name in front of it")
            if token.kind == "repeats" and before in ("|", "(", "repeats"):
                raise _error(self._text, token.position, "nothing stands here to be repeated")
            if token.kind in ("|", ")") and before in ("|", "("):
                rule.parts.append('""')
            rule.add(token, self._in_lark(token))
            before = token.kind
        if rule.open_places:
            raise _error(self._text, self._next.position, "a ) is missing")
        if before == "|":
            rule.parts.append('""')
        return rule

    def _in_lark(self, token: _Token) -> str:
        try:
            return in_lark(token.kind, token.text)
        except ValueError as error:
            raise _error(self._text, token.position, str(error)) from None

    @property
    def _next(self) -> _Token:
        return self._tokens[self._at]

    def _is_at_end_of_rule(self) -> bool:
        """The text ends, or what is next begins another rule."""
        is_name = self._next.kind == "name"
        return self._next.kind == "end" or (
            is_name and self._tokens[self._at + 1].kind == "defined"
        )

    def _take(self, kind: str, wanted: str) -> _Token:
        token = self._next
        if token.kind != kind:
            raise _error(self._text, token.position, f"{wanted} must stand here")
        self._at += 1
        return token


def _tokens_of(text: str) -> Iterator[_Token]:
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise _error(text, position, f"{text[position]!r} begins nothing that can stand here")
        assert match.lastgroup is not None
        kind = match[0] if match.lastgroup == "mark" else match.lastgroup
        yield _Token(kind, match[0], position)
        position = match.end()
    yield _Token("end", "", position)


def _without_recursion(rules: dict[str, _Rule]) -> set[str]:
    """The rules that lead to no recursive one, each looked at once for each reference to it."""
    users: dict[str, list[str]] = {name: [] for name in rules}
    num_open = {}
    for name, rule in rules.items():
        num_open[name] = len(rule.references)
        for token in rule.references.values():
            users[token.text].append(name)
    found = [name for name, number in num_open.items() if number == 0]
    for name in found:  # it grows
        for user in users[name]:
            num_open[user] -= 1
            if num_open[user] == 0:
                found.append(user)
    return set(found)


def _error(text: str, position: int, problem: str) -> ValueError:
    line = text.count("\n", 0, position) + 1
    column = position - (text.rfind("\n", 0, position) + 1) + 1
    return ValueError(f"line {line}, column {column}: {problem}")
