"""Lexemes of GBNF: what may stand behind each, and which are read at the same place."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from pagoda.engine.gbnf.automaton import (
    Alphabet,
    Automaton,
    Meeting,
    automaton_of,
    meeting_of,
    text_part,
)
from pagoda.engine.gbnf.positions import NOTHING, Effort, Part, Positions, bits_of
from pagoda.engine.gbnf.signs import said_of
from pagoda.engine.gbnf.tree import Choice, Token, leaves_of


class Lexeme(NamedTuple):
    """A rule by its name, a text by what it says, a class or a dot."""

    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class Lexemes:
    """Which rules and which texts of several characters are lexemes."""

    rules: frozenset[str]
    texts: frozenset[str]


class Automata:
    """The automata of a grammar's lexemes, and what two of them do together; each made once."""

    def __init__(self, rules: dict[str, Choice], effort: Effort) -> None:
        self._rules = rules
        self._effort = effort
        self._alphabet = Alphabet(leaf for rule in rules.values() for leaf in leaves_of(rule))
        self._made: dict[Lexeme, Automaton] = {}
        self._met: dict[tuple[Lexeme, Lexeme], Meeting] = {}

    def of(self, lexeme: Lexeme) -> Automaton:
        """Raises `TooMuchError` for a large one."""
        if lexeme not in self._made:
            self._made[lexeme] = automaton_of(partial(self._make, lexeme), self._effort)
        return self._made[lexeme]

    def meeting(self, one: Lexeme, other: Lexeme) -> Meeting:
        """See `meeting_of`."""
        if (one, other) not in self._met:
            self._met[one, other] = meeting_of(self.of(one), self.of(other), self._effort)
        return self._met[one, other]

    def _make(self, lexeme: Lexeme, positions: Positions[int]) -> Part:
        def leaf(token: Token) -> Part:
            if token.kind == "name":
                return positions.of(self._rules[token.text], leaf)
            if token.kind == "text":
                return text_part(positions, said_of(token), self._alphabet)
            return positions.one(self._alphabet.of(token))

        if lexeme.kind == "text":
            return text_part(positions, lexeme.text, self._alphabet)
        return leaf(Token(lexeme.kind, lexeme.text, 0))


class Neighbours:
    """The lexemes of a grammar, those that are `chosen` and single characters, side by side.

    More may be told than there are: what follows a rule follows it wherever it stands.
    """

    def __init__(
        self, rules: dict[str, Choice], chosen: Lexemes, automata: Automata, effort: Effort
    ) -> None:
        self._chosen = chosen
        self._automata = automata
        self._effort = effort
        self._empty = _empty_rules(rules, effort)
        self._numbers: dict[Lexeme, int] = {}
        self._bodies = {
            name: self._body(rule) for name, rule in rules.items() if name not in chosen.rules
        }
        self._lexemes = list(self._numbers)
        self._first = self._first_of_rules()
        self._next = self._next_of_lexemes()
        self._beside = self._read_together()
        self._characters: dict[int, int] = {}
        """Those that may come behind a lexeme, by its number."""

    def pairs(self) -> Iterator[tuple[Lexeme, Lexeme]]:
        """Two that are read at the same place, each with itself too, in both orders."""
        for number, others in enumerate(self._beside):
            for other in bits_of(others):
                yield self._lexemes[number], self._lexemes[other]

    def meeting(self, one: Lexeme, other: Lexeme) -> Meeting:
        """See `meeting_of`."""
        return self._automata.meeting(one, other)

    def next_characters(self, lexeme: Lexeme) -> int:
        """The characters that may come behind a lexeme."""
        number = self._numbers[lexeme]
        if number not in self._characters:
            characters = 0
            for each in bits_of(self._next[number]):
                self._effort.take()
                characters |= self._automata.of(self._lexemes[each]).beginnings
            self._characters[number] = characters
        return self._characters[number]

    def _body(self, rule: Choice) -> tuple[Positions[Lexeme | str], Part]:
        """The places of a rule that is no lexeme; other such rules are there by their names."""
        positions: Positions[Lexeme | str] = Positions(self._effort)

        def one(lexeme: Lexeme) -> Part:
            self._numbers.setdefault(lexeme, len(self._numbers))
            return positions.one(lexeme, self._automata.of(lexeme).whole.may_be_empty)

        def leaf(token: Token) -> Part:
            if token.kind == "name" and token.text not in self._chosen.rules:
                return positions.one(token.text, token.text in self._empty)
            if token.kind != "text":
                return one(Lexeme(token.kind, token.text))
            said, part = said_of(token), NOTHING
            for each in [said] if said in self._chosen.texts and said else said:
                part = positions.joined(part, one(Lexeme("text", each)))
            return part

        return positions, positions.of(rule, leaf)

    def _begin(self, symbols: list[Lexeme | str], places: int, first: dict[str, int]) -> int:
        """The lexemes with which these places begin, as bits."""
        found = 0
        for place in bits_of(places):
            self._effort.take()
            symbol = symbols[place]
            found |= first[symbol] if isinstance(symbol, str) else 1 << self._numbers[symbol]
        return found

    def _first_of_rules(self) -> dict[str, int]:
        first = dict.fromkeys(self._bodies, 0)

        def grow() -> None:
            for name, (positions, whole) in self._bodies.items():
                first[name] |= self._begin(positions.symbols, whole.first, first)

        _until_stable(grow, lambda: list(first.values()))
        return first

    def _next_of_lexemes(self) -> list[int]:
        """What may come behind each lexeme, as bits."""
        behind_rule = dict.fromkeys(self._bodies, 0)
        behind = [0] * len(self._lexemes)
        inside = {
            name: [self._begin(body.symbols, each, self._first) for each in body.behind]
            for name, (body, _) in self._bodies.items()
        }

        def grow() -> None:
            for name, (body, whole) in self._bodies.items():
                for place, symbol in enumerate(body.symbols):
                    self._effort.take()
                    after = inside[name][place]
                    if whole.last >> place & 1:
                        after |= behind_rule[name]
                    if isinstance(symbol, str):
                        behind_rule[symbol] |= after
                    else:
                        behind[self._numbers[symbol]] |= after

        _until_stable(grow, lambda: [*behind_rule.values(), *behind])
        return behind

    def _read_together(self) -> list[int]:
        """Those that are read at the same place as each lexeme, as bits.

        Several lexemes may end at once. What comes behind any of them is read then.
        """
        beside = [0] * len(self._lexemes)
        for together in (self._first["root"], *self._next):
            for number in bits_of(together):
                beside[number] |= together

        def grow() -> None:
            for number, others in enumerate(beside):
                for other in bits_of(others):
                    self._effort.take()
                    one, two = self._lexemes[number], self._lexemes[other]
                    if number < other and self.meeting(one, two).are_both_complete:
                        for each in bits_of(self._next[number]):
                            beside[each] |= self._next[other]
                        for each in bits_of(self._next[other]):
                            beside[each] |= self._next[number]

        _until_stable(grow, lambda: list(beside))
        return beside


def _empty_rules(rules: dict[str, Choice], effort: Effort) -> set[str]:
    """Those that may stand for nothing."""
    empty: set[str] = set()

    def grow() -> None:
        for name, rule in rules.items():
            if name not in empty and _may_be_empty(rule, empty, effort):
                empty.add(name)

    _until_stable(grow, lambda: len(empty))
    return empty


def _may_be_empty(choice: Choice, empty: set[str], effort: Effort) -> bool:
    effort.take()
    return any(
        all(
            not item.least
            or (
                _may_be_empty(item.what, empty, effort)
                if isinstance(item.what, Choice)
                else item.what.text in empty or item.what.text == '""'
            )
            for item in sequence
        )
        for sequence in choice.sequences
    )


def _until_stable(grow: Callable[[], None], state: Callable[[], object]) -> None:
    before = None
    while before != (now := state()):
        before = now
        grow()
