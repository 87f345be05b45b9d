"""Lexemes of GBNF: they change nothing of what a grammar means, and stay where they do not."""

from __future__ import annotations

from random import Random

import llguidance
import pytest

from engine.gbnf_language import TEXTS, language, random_grammar
from pagoda.engine.gbnf.lexemes import lexemes_of
from pagoda.engine.gbnf.neighbours import Lexemes
from pagoda.engine.gbnf.parser import lark_of, rules_of

BYTES = llguidance.LLTokenizer("byte")
NUM_GRAMMARS = 60
"""In each of the tests that draw some."""
JSON = r"""
root ::= value
value ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws (string ":" ws value ("," ws string ":" ws value)*)? "}" ws
array ::= "[" ws (value ("," ws value)*)? "]" ws
string ::= "\"" ([^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}))* "\"" ws
number ::= "-"? ([0-9] | [1-9] [0-9]{0,15}) ("." [0-9]+)? ([eE] [-+]? [0-9]+)? ws
ws ::= | " " | "\n" [ \t]{0,20}
"""
ARITHMETIC = r"""
root ::= (expr "=" ws term "\n")+
expr ::= term ([-+*/] term)*
term ::= ident | num | "(" ws expr ")" ws
ident ::= [a-z] [a-z0-9_]* ws
num ::= [0-9]+ ws
ws ::= [ \t\n]*
"""
TAKEN: dict[str, tuple[str, list[str], list[str]]] = {
    "white space that may hold the sign behind it": (
        ARITHMETIC,
        ["1+2=3\n", "1+2=3\n4+(4 *a_1)\n=8\n\n", "a=b \nc =\td\n"],
        ["1+2=3", "1+=3\n"],
    ),
    "a class that holds the sign behind it": (
        'root ::= key "=" val | "[" root "]"\nkey ::= [a-z=]+\nval ::= [0-9]+',
        ["a=1", "a==1", "[[a=b=12]]"],
        ["=1", "a=", "[a=1"],
    ),
    "a text that goes on as another": (
        'root ::= ("a" | "ab") "bc" | "(" root ")"',
        ["abc", "abbc", "(abc)"],
        ["ac", "(abc"],
    ),
    "a word that begins as a name": (
        'root ::= ("if" name | name) ";" root | "."\nname ::= [a-z]+',
        ["ifx;if;iff;.", "i;."],
        [";.", "if"],
    ),
    "a rule that is a lexeme of another": (
        'root ::= pair root | digit "." | "!"\npair ::= digit digit\ndigit ::= [0-9]',
        ["123.", "12!", "!"],
        ["12", "."],
    ),
    "a text that is repeated": ('root ::= "ab"{2} "a" root | "."', ["ababa."], ["aba.", "ababab."]),
}


def takes(grammar: str, texts: list[str]) -> list[str]:
    """Those of the texts that the grammar stands for."""
    source = llguidance.LLMatcher.grammar_from_lark(lark_of(grammar))
    start = llguidance.LLMatcher(BYTES, source, log_level=0)
    assert not start.is_error(), start.get_error()
    taken = []
    for text in texts:
        matcher, token_ids = start.deep_copy(), list(text.encode())
        is_read = matcher.try_consume_tokens(token_ids) == len(token_ids)
        if is_read and matcher.is_accepting():
            taken.append(text)
    return taken


@pytest.mark.parametrize("name", TAKEN)
def test_a_recursive_grammar_takes_all_that_it_says(name: str) -> None:
    grammar, taken, refused = TAKEN[name]
    assert takes(grammar, taken + refused) == taken


@pytest.mark.parametrize("seed", range(5))
def test_any_grammar_means_what_its_rules_say(seed: int) -> None:
    random, num_recursive = Random(seed), 0
    for _ in range(NUM_GRAMMARS):
        grammar = random_grammar(random)
        expected = language(rules_of(grammar))
        if expected:  # llguidance refuses a grammar of no text
            assert {*takes(grammar, TEXTS)} == expected, grammar
            num_recursive += "root" not in lexemes_of(rules_of(grammar)).rules
    assert num_recursive > NUM_GRAMMARS // 4


def test_lexemes_stay_where_nothing_goes_on() -> None:
    """Masks of single characters take fifty times as long."""
    lexemes = lexemes_of(rules_of(JSON))
    assert lexemes.rules == {"string", "number", "ws"}
    assert {"true", "false", "null"} <= lexemes.texts
    assert takes(JSON, ['{"a": [1, -2.5e3, true]}', "[]", "nul", '{"a" 1}']) == [
        '{"a": [1, -2.5e3, true]}',
        "[]",
    ]


def test_a_grammar_without_recursion_is_one_lexeme() -> None:
    grammar = 'root ::= a "a" | "ab"\na ::= [a-z]*'
    assert lexemes_of(rules_of(grammar)).rules == {"root", "a"}
    assert takes(grammar, ["a", "zza", "ab", "b"]) == ["a", "zza", "ab"]


@pytest.mark.parametrize(
    "grammar",
    [
        'root ::= "(" root ")" | "' + "ab" * 5000 + '"',
        'root ::= r0 | "(" root ")"\n'
        + "\n".join(f"r{n} ::= r{n + 1} r{n + 1}" for n in range(12))
        + '\nr12 ::= "a"',
        "root ::= "
        + " | ".join(f"r{n}" for n in range(400))
        + "\n"
        + "\n".join(f'r{n} ::= [a-z\\u{1000 + n}]+ "x" root' for n in range(400)),
    ],
    ids=["a long text", "places that double", "many rules"],
)
def test_where_it_takes_long_to_tell_there_are_no_lexemes(grammar: str) -> None:
    assert lexemes_of(rules_of(grammar)) == Lexemes(frozenset(), frozenset())


def test_a_deep_lexeme_is_no_lexeme() -> None:
    deep = "\n".join(f"r{n} ::= {'(' * 60}r{n + 1}{')' * 60}" for n in range(30))
    grammar = f'root ::= r0 | "(" root ")"\n{deep}\nr30 ::= "a"'
    assert lexemes_of(rules_of(grammar)).rules == frozenset()
