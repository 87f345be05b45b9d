"""Rules and texts of GBNF that may be lexemes, which llguidance matches as far as they go.

It never goes back: with the lexemes [a-z=]+ and "=", the whole of `key=` is the first one's. A
grammar means that the first may end where it likes. So a rule, or a text of several characters, is
a lexeme only if it cannot go on, where another one that is read at the same place is complete, with
a character that may come next. What is left are single characters, among which nothing goes on;
following them takes up to fifty times as long.
"""

from __future__ import annotations

from pagoda.engine.gbnf.neighbours import Automata, Lexeme, Lexemes, Neighbours
from pagoda.engine.gbnf.positions import Effort, TooMuchError
from pagoda.engine.gbnf.signs import said_of
from pagoda.engine.gbnf.tree import Choice, leaves_of

_NUM_STEPS = 100_000
"""Some tenths of a second."""


def lexemes_of(rules: dict[str, Choice]) -> Lexemes:
    """As many as do not change what the grammar means; none where that takes long to tell.

    A grammar whose root leads to no recursive rule is one lexeme.
    """
    flat = _without_recursion(rules)
    if "root" in flat:
        return Lexemes(flat, frozenset())
    leaves = (leaf for rule in rules.values() for leaf in leaves_of(rule))
    found = Lexemes(flat, frozenset(said_of(leaf) for leaf in leaves if leaf.kind == "text"))
    effort = Effort(_NUM_STEPS)
    try:
        automata = Automata(rules, effort)
        while greedy := _greedy(Neighbours(rules, found, automata, effort)):
            found = Lexemes(
                found.rules - {each.text for each in greedy if each.kind == "name"},
                found.texts - {each.text for each in greedy if each.kind == "text"},
            )
    except (TooMuchError, RecursionError):  # automata are made by descending into rules
        return Lexemes(frozenset(), frozenset())
    return found


def _greedy(neighbours: Neighbours) -> set[Lexeme]:
    """Those that may go on where another one, or they themselves, should end."""
    return {
        other
        for one, other in neighbours.pairs()
        if neighbours.meeting(one, other).goes_on_with & neighbours.next_characters(one)
    }


def _without_recursion(rules: dict[str, Choice]) -> frozenset[str]:
    """The rules that lead to no recursive one, each looked at once for each reference to it."""
    users: dict[str, list[str]] = {name: [] for name in rules}
    num_open = dict.fromkeys(rules, 0)
    for name, rule in rules.items():
        for leaf in leaves_of(rule):
            if leaf.kind == "name":
                num_open[name] += 1
                users[leaf.text].append(name)
    found = [name for name, number in num_open.items() if number == 0]
    for name in found:  # it grows
        for user in users[name]:
            num_open[user] -= 1
            if num_open[user] == 0:
                found.append(user)
    return frozenset(found)
