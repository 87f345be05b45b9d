"""Rules of GBNF, written in the notation of Lark."""

from __future__ import annotations

from pagoda.engine.gbnf.lexemes import lexemes_of
from pagoda.engine.gbnf.neighbours import Lexemes
from pagoda.engine.gbnf.signs import is_negated, ranges_of, said_of
from pagoda.engine.gbnf.tree import Choice, Item, Token, leaves_of
from pagoda.engine.lark_text import lark_text


def lark_of_rules(rules: dict[str, Choice]) -> str:
    """A grammar that begins at the rule `root`.

    A lexeme among the rules is written as a token of Lark's, in capital letters, and so is what it
    is made of; any other as a rule. One that others make lexemes of may be written as both.
    """
    lexemes = lexemes_of(rules)
    inside = _parts(lexemes.rules, rules)
    numbers = {name: number for number, name in enumerate(rules)}
    writer = _Writer(numbers, lexemes)
    lines = [f"start: {writer.name('root')}"]
    for name, rule in rules.items():
        if name in inside:
            lines.append(f"R{numbers[name]}: {writer.choice(rule, is_inside=True)}")
        if name not in lexemes.rules:
            lines.append(f"r{numbers[name]}: {writer.choice(rule, is_inside=False)}")
    return "\n".join(lines)


class _Writer:
    def __init__(self, numbers: dict[str, int], lexemes: Lexemes) -> None:
        self._numbers = numbers
        self._lexemes = lexemes

    def name(self, name: str, is_inside: bool = False) -> str:
        """A reference; `is_inside`: from within a lexeme."""
        is_lexeme = is_inside or name in self._lexemes.rules
        return f"{'R' if is_lexeme else 'r'}{self._numbers[name]}"

    def choice(self, choice: Choice, is_inside: bool) -> str:
        sequences = (
            " ".join(self._item(item, is_inside) for item in sequence) or '""'
            for sequence in choice.sequences
        )
        return " | ".join(sequences)

    def _item(self, item: Item, is_inside: bool) -> str:
        repeats = _repeats(item)
        if isinstance(item.what, Choice):
            return f"({self.choice(item.what, is_inside)}){repeats}"
        parts = self._leaf(item.what, is_inside)
        text = " ".join(parts)
        return f"({text}){repeats}" if repeats and len(parts) > 1 else text + repeats

    def _leaf(self, token: Token, is_inside: bool) -> list[str]:
        """One part, or one for each character of a text that is no lexeme."""
        if token.kind == "name":
            return [self.name(token.text, is_inside)]
        if token.kind == "any":
            return ["/(?s:.)/"]
        if token.kind == "characters":
            return [_class(token)]
        said = said_of(token)
        if said in self._lexemes.texts or is_inside or not said:
            return [lark_text(said)]
        return [lark_text(each) for each in said]


def _class(token: Token) -> str:
    inside = []
    for low, high in ranges_of(token):
        ends = (low, high) if low < high else (low,)
        inside.append("-".join(rf"\u{{{ord(each):x}}}" for each in ends))
    return f"/[{'^' if is_negated(token) else ''}{''.join(inside)}]/"


def _repeats(item: Item) -> str:
    if (item.least, item.most) == (1, 1):
        return ""
    short = {(0, None): "*", (1, None): "+", (0, 1): "?"}.get((item.least, item.most))
    return short or f"{{{item.least},{'' if item.most is None else item.most}}}"


def _parts(names: frozenset[str], rules: dict[str, Choice]) -> set[str]:
    """These rules, and those that they are made of."""
    found, waiting = set(names), list(names)
    while waiting:
        for token in leaves_of(rules[waiting.pop()]):
            if token.kind == "name" and token.text not in found:
                found.add(token.text)
                waiting.append(token.text)
    return found
