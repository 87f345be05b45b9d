"""GBNF: what its grammars take once they are in Lark's notation, and what is wrong with others."""

from __future__ import annotations

import llguidance
import pytest

from pagoda.engine.gbnf.parser import MAX_DEPTH, is_gbnf, lark_of

BYTES = llguidance.LLTokenizer("byte")
ARITHMETIC = """# sums of products
root  ::= term ("+" term)*   # a comment
term  ::= term "*" factor    # recursive on the left
        | factor
factor ::= [0-9]+ | "(" ws
  root ws ")"
ws ::= [ \\t\\n]*
"""
TAKEN: dict[str, tuple[str, list[str], list[str]]] = {
    "a choice": ('root ::= "yes" | "no"', ["yes", "no"], ["maybe", ""]),
    "a recursive one": (
        ARITHMETIC,
        ["1", "12*3+(4)", "( 1+\t2 )"[:2] + "1+2 )"],
        ["+1", "(1", "1 "],
    ),
    "alternatives that begin alike": ('root ::= ("a" | "ab") "bc"', ["abc", "abbc"], ["ac"]),
    "names of any case": (
        'root ::= Foo foo foo-bar\nFoo ::= "a"\nfoo ::= "b"\nfoo-bar ::= "c"',
        ["abc"],
        ["aac"],
    ),
    "repeats": (
        'root ::= "a"{2} "b"{1,3} "c"{2,} "d"? "e"*',
        ["aabcc", "aabbbcccde"],
        ["abcc", "aabbbbcc"],
    ),
    "repeats of none": (
        'root ::= "a"{0} "b" ("c" | (x [d]){1,2}){0,0} "e" | x{0} "f"\nx ::= root',
        ["be", "f"],
        ["abe", "bce", "e", "bef"],
    ),
    "nothing but repeats of none": ('root ::= ("a" ("b")){ 0 }', [""], ["ab"]),
    "nothing": ('root ::= "a" ( | "b") empty\nempty ::=', ["a", "ab"], ["b"]),
    "escapes": (r'root ::= "\x41\u00e9\U0001F600\n\t\\\"/"', ['A\u00e9\U0001f600\n\t\\"/'], ["A"]),
    "a delete sign": (r'root ::= "\x7f" root | ""', ["\x7f\x7f"], ["7f"]),
    "classes": (r'root ::= [^a-c\]] [\-x/"] [a-]', ["d-a", "[x-", '\n"a'], ["a-a", "]-a", "dya"]),
    "ranges beside dashes": ("root ::= [--/a-c-e] [+--b]", [".+", "-,", "b-", "eb"], ["d+", "a."]),
    "any character": ("root ::= . .", ["a\n", "\u00e9\u20ac"], ["a"]),
    "Windows' ends of lines": ('root ::= a\r\na ::= "x"\r\n', ["x"], ["y"]),
}
WRONG: dict[str, tuple[str, str]] = {
    "no rule": ("", "named root"),
    "no root": ('x ::= "a"', "named root"),
    "an unknown rule": ('root ::= "a"\n | x', "line 2, column 4: there is no rule named x"),
    "two of a name": ('root ::= "a"\nroot ::= "b"', "line 2, column 1: there are two"),
    "a ( too many": ("root ::= (", "line 1, column 11: a \\) is missing"),
    "a ) too many": ('root ::= "a")', "line 1, column 13: no \\("),
    "too deep": ("root ::= " + "(" * (MAX_DEPTH + 1), "more than 64 levels"),
    "an open text": ('root ::= "a', "line 1, column 10"),
    "an open class": ("root ::= [a", "line 1, column 10"),
    "an empty class": ("root ::= []", "line 1, column 10"),
    "an unknown rule, repeated never": ("root ::= x{0}", "line 1, column 10: there is no rule"),
    "a range that ends before it begins": (
        'root ::= "x" foo\n\n\n\nfoo ::= [z-a]',
        "line 5, column 9: z-a ends before it begins",
    ),
    "such a range of escapes": (r"root ::= [a-\x00]", "line 1, column 10"),
    "no escape": (r'root ::= "\q"', "no escape"),
    "half a surrogate pair": (r'root ::= "\ud800"', "no character"),
    "beyond Unicode": (r'root ::= "\U00110000"', "no character"),
    "repeats of nothing": ("root ::= *", "nothing stands here"),
    "repeats of repeats": ('root ::= "a"**', "nothing stands here"),
    "repeats that shrink": ('root ::= "a"{3,2}', "3 is more than 2"),
    "too many repeats": ('root ::= "a"{99999}', "at most 10000 times"),
    "a stray sign": ('root ::= "a" @', "line 1, column 14"),
    "a rule in a rule": ("root ::= ::=", "line 1, column 10"),
    "no ::=": ("root", "line 1, column 5"),
}


def accepts(grammar: str, text: str) -> bool:
    source = llguidance.LLMatcher.grammar_from_lark(lark_of(grammar))
    matcher = llguidance.LLMatcher(BYTES, source, log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    token_ids = list(text.encode())
    return matcher.try_consume_tokens(token_ids) == len(token_ids) and matcher.is_accepting()


@pytest.mark.parametrize("name", TAKEN)
def test_a_grammar_takes_what_it_says(name: str) -> None:
    grammar, taken, refused = TAKEN[name]
    assert is_gbnf(grammar)
    assert [text for text in taken if not accepts(grammar, text)] == []
    assert [text for text in refused if accepts(grammar, text)] == []


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_told_with_its_place(name: str) -> None:
    grammar, problem = WRONG[name]
    with pytest.raises(ValueError, match=problem):
        lark_of(grammar)


@pytest.mark.parametrize(
    "lark", ['start: "a ::= b"', "start: /x/ // y ::= z", "// root ::= x\nstart: /a/", ""]
)
def test_lark_stays_lark(lark: str) -> None:
    assert not is_gbnf(lark)
