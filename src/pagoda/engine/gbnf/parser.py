"""GBNF, the grammars of llama.cpp and vLLM's EBNF, in the notation of Lark that llguidance reads.

root ::= "yes" | "no" reason?        # comments; "a", [a-z], ., (…), *, +, ?, {2,3}, |
reason ::= " because " [a-z ]{1,40}
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from pagoda.engine.gbnf.lark import lark_of_rules
from pagoda.engine.gbnf.signs import repeats_of, require_readable
from pagoda.engine.gbnf.tree import Choice, Item, Token

MAX_DEPTH = 64
"""Parentheses within one another."""
MAX_RULES = 1000
"""Rules and groups of one grammar: llguidance needs some kilobytes of stack for each."""
RULES_LIMIT = f"a grammar may have at most {MAX_RULES} rules and groups"

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


def is_gbnf(text: str) -> bool:
    """Some line begins a rule as GBNF does, which Lark has no such sign for."""
    return _RULE.search(text) is not None


def lark_of(text: str) -> str:
    """The same grammar for llguidance. Raises `ValueError` naming line and column."""
    return lark_of_rules(rules_of(text))


def rules_of(text: str) -> dict[str, Choice]:
    """The rules by their names, `root` among them. Raises `ValueError` as `lark_of` does."""
    rules = _Parser(text).rules()
    if "root" not in rules:
        raise ValueError("a grammar needs a rule named root")
    if len(rules) > MAX_RULES:
        raise ValueError(RULES_LIMIT)
    return rules


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = [token for token in _tokens_of(text) if token.kind != "skipped"]
        self._at = 0

    def rules(self) -> dict[str, Choice]:
        rules: dict[str, Choice] = {}
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

    def _rule(self) -> Choice:
        """What stands behind ::=, up to the next rule. The groups that are open are a list."""
        open_groups, before = [Choice([[]])], "|"
        while not self._is_at_end_of_rule():
            token = self._next
            self._at += 1
            self._check(token, before, len(open_groups) - 1)
            sequences = open_groups[-1].sequences
            if token.kind == "|":
                sequences.append([])
            elif token.kind == "(":
                open_groups.append(Choice([[]]))
                sequences[-1].append(Item(open_groups[-1]))
            elif token.kind == ")":
                open_groups.pop()
            elif token.kind == "repeats":
                self._repeat(token, sequences[-1])
            else:
                sequences[-1].append(Item(token))
            before = token.kind
        if len(open_groups) > 1:
            raise _error(self._text, self._next.position, "a ) is missing")
        return open_groups[0]

    def _check(self, token: Token, before: str, depth: int) -> None:
        """Raises for a token that cannot stand behind one of the kind `before`."""
        if token.kind == "(" and depth == MAX_DEPTH:
            raise _error(self._text, token.position, f"more than {MAX_DEPTH} levels")
        if token.kind == ")" and not depth:
            raise _error(self._text, token.position, "no ( belongs to this )")
        if token.kind == "defined":
            raise _error(self._text, token.position, "::= needs a rule's name in front of it")
        if token.kind == "repeats" and before in ("|", "(", "repeats"):
            raise _error(self._text, token.position, "nothing stands here to be repeated")
        try:
            require_readable(token)
        except ValueError as error:
            raise _error(self._text, token.position, str(error)) from None

    def _repeat(self, token: Token, sequence: list[Item]) -> None:
        """The last item of `sequence` is repeated; what stands there no time at all is left out."""
        try:
            sequence[-1].least, sequence[-1].most = repeats_of(token.text)
        except ValueError as error:
            raise _error(self._text, token.position, str(error)) from None
        if sequence[-1].most == 0:
            sequence.pop()

    @property
    def _next(self) -> Token:
        return self._tokens[self._at]

    def _is_at_end_of_rule(self) -> bool:
        """The text ends, or what is next begins another rule."""
        is_name = self._next.kind == "name"
        return self._next.kind == "end" or (
            is_name and self._tokens[self._at + 1].kind == "defined"
        )

    def _take(self, kind: str, wanted: str) -> Token:
        token = self._next
        if token.kind != kind:
            raise _error(self._text, token.position, f"{wanted} must stand here")
        self._at += 1
        return token


def _tokens_of(text: str) -> Iterator[Token]:
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise _error(text, position, f"{text[position]!r} begins nothing that can stand here")
        assert match.lastgroup is not None
        kind = match[0] if match.lastgroup == "mark" else match.lastgroup
        yield Token(kind, match[0], position)
        position = match.end()
    yield Token("end", "", position)


def _error(text: str, position: int, problem: str) -> ValueError:
    line = text.count("\n", 0, position) + 1
    column = position - (text.rfind("\n", 0, position) + 1) + 1
    return ValueError(f"line {line}, column {column}: {problem}")
