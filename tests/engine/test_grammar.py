"""Constraints on answers: compiled or refused at the door, and followed to the letter."""

from __future__ import annotations

import json
import random
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from engine.conftest import MakeLLM
from pagoda import LLM, RequestOutput, SamplingParams, StructuredOutputs
from pagoda.engine.finite import has_finite_answer
from pagoda.engine.grammar import Matcher, MatchError
from pagoda.engine.grammar_cache import (
    MOST_BYTES,
    MOST_GRAMMARS,
    GrammarCache,
    GrammarKey,
)
from pagoda.errors import InvalidRequestError
from pagoda.request import RequestOptions, ThoughtMarks
from pagoda.structured import MAX_CONSTRAINT_CHARACTERS, MAX_SCHEMA_DEPTH, MAX_STRUCTURED_CHOICES

POINT = {
    "type": "object",
    "properties": {
        "x": {"type": "integer", "minimum": 0, "maximum": 99},
        "on": {"type": "boolean"},
    },
    "required": ["x", "on"],
    "additionalProperties": False,
}
"""At most about forty bytes, white space aside."""
LOOP = {"type": "object", "properties": {"x": {"$ref": "#"}}, "required": ["x"]}
TWO_LOOPS = {
    "$defs": {
        "a": {"type": "array", "items": {"$ref": "#/$defs/b"}, "minItems": 1},
        "b": {"allOf": [{"$ref": "#/$defs/a"}]},
    },
    "anyOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}],
}
TREE = {"type": "object", "properties": {"x": {"$ref": "#"}, "y": {"const": 1}}, "required": ["y"]}
LIST = {"anyOf": [{"type": "null"}, {"type": "array", "items": {"$ref": "#"}, "minItems": 1}]}


def nested(depth: int) -> dict[str, Any]:
    return nested_in(depth, {})


def nested_in(depth: int, schema: dict[str, Any]) -> dict[str, Any]:
    for _ in range(depth):
        schema = {"items": schema}
    return schema


BAD_WORDS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "two kinds": {"regex": "a", "choice": ["a"]},
    "a schema that is a list": {"json": []},
    "a schema that is a number": {"json": 5},
    "text that is no JSON": {"json": "{"},
    "text that is no object": {"json": "true"},
    "a huge schema": {"json": {"enum": ["x" * MAX_CONSTRAINT_CHARACTERS]}},
    "a deep schema": {"json": nested(MAX_SCHEMA_DEPTH)},
    "a very deep schema": {"json": nested(5000)},
    "very deep text": {"json": '{"items":' * 5000 + "{}" + "}" * 5000},
    "an unwritable schema": {"json": {"const": {1, 2}}},
    "json_object of a wrong type": {"json_object": 1},
    "an empty regex": {"regex": ""},
    "a regex of a wrong type": {"regex": ["a"]},
    "a huge regex": {"regex": "a" * (MAX_CONSTRAINT_CHARACTERS + 1)},
    "half a surrogate pair": {"regex": "\ud800"},
    "no choices": {"choice": []},
    "an empty choice": {"choice": ["a", ""]},
    "a choice that is a number": {"choice": ["a", 1]},
    "choices as text": {"choice": "abc"},
    "too many choices": {"choice": ["a"] * (MAX_STRUCTURED_CHOICES + 1)},
    "a grammar of a wrong type": {"grammar": 5},
    "a switch of a wrong type": {"json": {}, "disable_any_whitespace": 1},
}

BAD_GRAMMARS: dict[str, dict[str, Any]] = {
    "unknown type": {"json": {"type": "objekt"}},
    "a type that is an object": {"json": {"type": {"a": 1}}},
    "types that are lists": {"json": {"type": [["object"]]}},
    "properties of a wrong type": {"json": {"properties": 5}},
    "required of a wrong type": {"json": {"type": "object", "required": "x"}},
    "a keyword that is not covered": {"json": {"not": {"type": "string"}}},
    "a schema from elsewhere": {"json": {"$ref": "http://example.com/schema"}},
    "a reference to nothing": {"json": {"$ref": "#/$defs/x"}},
    "a pattern that is no regex": {"json": {"type": "string", "pattern": "["}},
    "an impossible schema": {
        "json": {"type": "object", "properties": {"a": False}, "required": ["a"]}
    },
    "a schema that is itself": {"json": {"$ref": "#"}},
    "a schema that requires itself": {"json": LOOP},
    "schemas that require each other": {"json": TWO_LOOPS},
    "a grammar with a schema that requires itself": {"grammar": f"start: %json {json.dumps(LOOP)}"},
    "hundreds of references": {
        "json": {"anyOf": [{"$ref": f"#/$defs/{index}"} for index in range(300)]}
    },
    # These two would end the process: llguidance descends on the machine's stack.
    "references as deep as a stack": {
        "json": {
            "$defs": {
                str(index): {"items": nested_in(20, {"$ref": f"#/$defs/{index + 1}"})}
                for index in range(250)
            },
            "$ref": "#/$defs/0",
        }
    },
    "rules as deep as a stack": {
        "grammar": "start: r0\n"
        + "\n".join(f"r{n}: r{n + 1}" for n in range(4000))
        + '\nr4000: "a"'
    },
    "GBNF rules as deep as a stack": {
        "grammar": "root ::= r0\n" + "\n".join(f"r{n} ::= r{n + 1} root" for n in range(3000))
    },
    "GBNF without a root": {"grammar": 'start ::= "a"'},
    "an unclosed class": {"regex": "["},
    "look-ahead": {"regex": "(?=a)b"},
    "a back-reference": {"regex": r"(a)\1"},
    "deep parentheses": {"regex": "(" * 3000 + "a" + ")" * 3000},
    "a million repeats": {"regex": "(a{1000}){1000}"},
    "repeats of repeats": {"regex": "((a{100}){100}){100}"},
    "no grammar": {"grammar": "what is this((("},
    "an unknown rule": {"grammar": "start: other"},
    "a rule that is itself": {"grammar": "start: start"},
    "rules that are each other": {"grammar": "start: a\na: b\nb: a"},
    "a rule without an end": {"grammar": 'start: "x" start'},
}


@pytest.fixture(scope="module")
def llm(make_llm: MakeLLM) -> LLM:
    return make_llm()


def asked(llm: LLM, wanted: StructuredOutputs, **fields: Any) -> RequestOutput:
    params = SamplingParams(**{"max_tokens": 100, "structured_outputs": wanted, **fields})
    (output,) = llm.generate("x", params, use_tqdm=False)
    return output


def answer(llm: LLM, wanted: StructuredOutputs, **fields: Any) -> str:
    """The text of an answer, which ends by itself."""
    [choice] = asked(llm, wanted, **fields).outputs
    assert choice.finish_reason == "stop"
    return choice.text


@pytest.mark.parametrize("name", BAD_WORDS)
def test_a_constraint_of_a_wrong_kind_is_refused_by_name(name: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        StructuredOutputs(**BAD_WORDS[name], field="response_format")
    assert refused.value.field == "response_format"
    assert len(str(refused.value)) < 400


@pytest.mark.parametrize("name", BAD_GRAMMARS)
def test_a_constraint_that_cannot_be_compiled_is_refused(name: str, llm: LLM) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        asked(llm, StructuredOutputs(**BAD_GRAMMARS[name]))
    assert refused.value.field == "structured_outputs"
    assert len(str(refused.value)) < 400
    assert not llm.engine.has_unfinished


@pytest.mark.parametrize("divisor", [10_001, 1.0001, 2e4])
def test_multiples_are_bounded_together(divisor: float, llm: LLM) -> None:
    one = {"type": "number", "multipleOf": divisor}
    with pytest.raises(InvalidRequestError, match="multipleOf may add up to at most 20,000"):
        asked(llm, StructuredOutputs(json={"anyOf": [one, {"items": [one]}]}))
    with pytest.raises(InvalidRequestError, match="multipleOf may add up to at most 20,000"):
        asked(llm, StructuredOutputs(json={"$ref": "#/x", "x": {"y": [one]}, "z": one}))
    text = json.dumps({"anyOf": [one, one]})
    with pytest.raises(InvalidRequestError, match="multipleOf may add up to at most 20,000"):
        asked(llm, StructuredOutputs(grammar=f'start: "%json 1" | %json {text} | /%json {{/'))
    small = StructuredOutputs(json={"type": "integer", "multipleOf": 7, "minimum": 7, "maximum": 8})
    assert answer(llm, small) == "7"
    lark = f"start: %json {small.json}"
    assert answer(llm, StructuredOutputs(grammar=lark)) == "7"


@pytest.mark.parametrize("regex", ["(", "a" * 300 + "("])
def test_a_regex_that_cannot_be_read_is_told_why(regex: str, llm: LLM) -> None:
    with pytest.raises(InvalidRequestError, match="unclosed group") as refused:
        asked(llm, StructuredOutputs(regex=regex))
    assert refused.value.limit.endswith(": unclosed group")
    assert len(refused.value.limit) < 220


def test_sampling_params_take_nothing_else() -> None:
    with pytest.raises(InvalidRequestError, match="structured_outputs"):
        SamplingParams(structured_outputs={"regex": "a"})  # type: ignore[arg-type]


def test_a_schema_is_kept_as_text_and_compares_by_it() -> None:
    first, second = StructuredOutputs(json=POINT), StructuredOutputs(json=json.dumps(POINT))
    assert first == second.named("guided_json")
    assert hash(first) == hash(second)


@pytest.mark.parametrize("temperature", [0.0, 1.0, 3.0])
@pytest.mark.parametrize(
    ("wanted", "pattern"),
    [
        (StructuredOutputs(regex="[a-c]{2}-[0-9]{3}"), "[a-c]{2}-[0-9]{3}"),
        (StructuredOutputs(regex="(x+x+){1,4}y"), "x{2,}y"),
        (StructuredOutputs(choice=["yes", "no", 'it\'s "é" \\ /n/']), None),
        (StructuredOutputs(grammar='start: "(" inner ")"\ninner: "a" | "b"'), r"\((a|b)\)"),
    ],
    ids=["regex", "catastrophic elsewhere", "choice", "grammar"],
)
def test_answers_are_what_was_asked_for(
    wanted: StructuredOutputs, pattern: str | None, temperature: float, llm: LLM
) -> None:
    text = answer(llm, wanted, temperature=temperature, seed=3)
    assert re.fullmatch(pattern, text) if pattern else text in (wanted.choice or ())


def test_a_choice_is_said_whatever_characters_it_has(llm: LLM) -> None:
    odd = [chr(code) for code in (*range(33), 0x7F, 0x85, 0xAD, 0x2028, 0xFEFF, 0xFFFF, 0x10FFFF)]
    for text in (*odd, "".join(odd), '\\"/\\u0041', "a\x7f"):
        assert answer(llm, StructuredOutputs(choice=[text])) == text


def test_a_catastrophic_regex_simply_works(llm: LLM) -> None:
    [choice] = asked(llm, StructuredOutputs(regex="(a+)+$"), temperature=1).outputs
    assert set(choice.text) == {"a"}


@pytest.mark.parametrize("seed", range(5))
def test_a_schema_holds(seed: int, llm: LLM) -> None:
    found = json.loads(answer(llm, StructuredOutputs(json=POINT), temperature=1.5, seed=seed))
    assert set(found) == {"x", "on"}
    assert found["x"] in range(100)
    assert isinstance(found["on"], bool)


def test_one_of_several_schemas_is_followed_though_they_overlap(llm: LLM) -> None:
    words, numbers = {"enum": ["all"]}, {"type": "string", "pattern": "^[1-9]$"}
    which = {"oneOf": [{"type": "string", **words}, numbers]}
    schema = {"type": "object", "properties": {"turns": which}, "required": ["turns"]}
    found = json.loads(answer(llm, StructuredOutputs(json=schema)))
    assert re.fullmatch("all|[1-9]", found["turns"])


@pytest.mark.parametrize(
    ("schema", "beginnings"),
    [(TREE, "{"), (LIST, "[n"), ({"type": "object", "properties": {"x": LOOP}}, "{")],
)
def test_recursion_that_can_end_is_taken(schema: dict[str, Any], beginnings: str, llm: LLM) -> None:
    [choice] = asked(llm, StructuredOutputs(json=schema), max_tokens=3).outputs
    assert choice.text.lstrip()[0] in beginnings
    assert 0 < len(choice.token_ids) <= 3


WALKED: dict[str, StructuredOutputs] = {
    "properties that are named": StructuredOutputs(
        json={"type": "object", "properties": {"x": {"type": "boolean"}, "y": {"enum": [1, 2]}}}
    ),
    "objects in objects": StructuredOutputs(
        json={
            "properties": {"p": {"$ref": "#/$defs/p"}, "q": {"anyOf": [{"$ref": "#/$defs/p"}]}},
            "required": ["p", "q"],
            "$defs": {"p": {"type": "object", "properties": {"x": {"const": None}}}},
            "type": "object",
        }
    ),
    "GBNF": StructuredOutputs(grammar='root ::= ("a" | "ab") [0-9]{2,9} end\nend ::= "." | "!"'),
}


@pytest.mark.parametrize("name", WALKED)
@pytest.mark.parametrize("seed", range(2))
def test_any_walk_through_the_grammar_ends(name: str, seed: int, llm: LLM) -> None:
    """All tokens that are allowed are as likely."""
    said, chosen = list[int](), random.Random(seed)
    grammars = llm.engine.intake._grammars
    matcher = grammars.compile(WALKED[name]).matcher()
    for _ in range(200):
        allowed = np.flatnonzero(matcher.follow(said)).tolist()
        token_id = chosen.choice(allowed)
        if token_id in matcher._eos_token_ids:
            break
        said.append(token_id)
    else:
        pytest.fail("it has not ended")
    text = grammars._tokenizer.backend.decode(said)
    assert "\n\n" not in text
    if WALKED[name].json is not None:
        keys: list[str] = []
        json.loads(text, object_pairs_hook=lambda pairs: keys.append([k for k, _ in pairs]))
        assert all(len({*each}) == len(each) and {*each} <= {*"xypq"} for each in keys)


@pytest.mark.parametrize(
    ("switches", "taken", "refused"),
    [
        ({}, ['{"x":1}', '{"x": 1}', '{\n  "x": 1\n}'], ['{"x":  1}', '{\n\n"x":1}', '{"y":1}']),
        ({"disable_any_whitespace": True}, ['{"x":1}'], ['{"x": 1}', '{\n"x":1}']),
        ({"disable_additional_properties": False}, ['{"x":1}', '{"y":1, "z":2}'], []),
    ],
)
def test_switches_of_a_schema(
    switches: dict[str, bool], taken: list[str], refused: list[str], llm: LLM
) -> None:
    wanted = StructuredOutputs(
        json={"properties": {"x": {"const": 1}}, "type": "object"}, **switches
    )
    grammars = llm.engine.intake._grammars
    backend = grammars._tokenizer.backend
    for text in (*taken, *refused):
        matcher = grammars.compile(wanted).matcher()
        said: list[int] = []
        for token_id in backend.encode(text, add_special_tokens=False).ids:
            if not matcher.follow(said)[token_id]:
                break
            said.append(token_id)
        assert (backend.decode(said) == text) == (text in taken)


def allowed(matcher: Matcher, said: list[int]) -> set[int]:
    return set(np.flatnonzero(matcher.follow(said)).tolist())


def test_a_grammar_holds_behind_a_thought(llm: LLM) -> None:
    """Whether the prompt has begun it or the model does; and without one from the first token."""
    grammars = llm.engine.intake._grammars
    grammar = grammars.compile(StructuredOutputs(choice=["no", "yes"]))
    [opening, closing, yes] = (ord(each) for each in "<>y")
    thought = ThoughtMarks(opening, closing, is_open=False)
    answers = allowed(grammar.matcher(), [])
    assert yes in answers
    assert opening not in answers
    anything = set(range(grammar.matcher().num_tokens)) - grammars._tokenizer.eos_token_ids
    for matcher, said in (
        (grammar.matcher(thought), [opening]),
        (grammar.matcher(replace(thought, is_open=True)), []),
    ):
        assert allowed(matcher, said) == anything
        assert allowed(matcher, [*said, yes, opening]) == anything
        assert allowed(matcher, [*said, yes, opening, closing]) == answers
        behind = [*said, yes, opening, closing, yes]
        assert allowed(matcher, behind) == allowed(grammar.matcher(), [yes])
    matcher = grammar.matcher(thought)
    assert allowed(matcher, []) == answers | {opening}
    assert allowed(matcher, [yes]) == allowed(grammar.matcher(), [yes])


@pytest.mark.parametrize("is_open", [True, False])
def test_an_answer_behind_a_thought_has_its_form(is_open: bool, llm: LLM) -> None:
    thought = ThoughtMarks(ord("<"), ord(">"), is_open=is_open)
    sampling = SamplingParams(
        structured_outputs=StructuredOutputs(choice=["no", "yes"]),
        max_tokens=60,
        seed=1,
        logit_bias=dict.fromkeys(map(ord, "<>"), 60.0),
    )
    *_, output = llm._grow("hi", sampling, RequestOptions(thought=thought))
    [choice] = output.outputs
    thinks, mark, said = choice.text.partition(">")
    assert is_open or thinks.startswith("<")
    assert (choice.finish_reason, mark) == ("stop", ">")
    assert said in ("no", "yes")


def test_every_choice_has_its_own_place_in_the_grammar(llm: LLM) -> None:
    output = asked(llm, StructuredOutputs(regex="[a-z]{6}"), n=4, temperature=2, seed=1)
    texts = [choice.text for choice in output.outputs]
    assert all(re.fullmatch("[a-z]{6}", text) for text in texts)
    assert len(set(texts)) > 1


@pytest.mark.parametrize(
    "fields",
    [
        {"min_tokens": 50},
        {"ignore_eos": True},
        {"min_tokens": 50, "ignore_eos": True, "stop_token_ids": [3]},
        {"logit_bias": {ord("a"): -100.0}},
        {"repetition_penalty": 5.0, "presence_penalty": 2.0, "frequency_penalty": 2.0},
        {"top_k": 1, "temperature": 1.0},
        {"min_p": 0.9, "top_p": 0.1, "temperature": 1.0},
    ],
    ids=str,
)
def test_other_parameters_do_not_break_it(fields: dict[str, Any], llm: LLM) -> None:
    assert answer(llm, StructuredOutputs(regex="aab"), **{"temperature": 0, **fields}) == "aab"


def test_min_tokens_holds_while_the_grammar_goes_on(llm: LLM) -> None:
    wanted = StructuredOutputs(regex="a{1,9}")
    assert len(answer(llm, wanted, min_tokens=7, temperature=1, seed=1)) >= 7


def test_a_stop_string_and_the_length_still_end_it(llm: LLM) -> None:
    wanted = StructuredOutputs(regex="aabaac")
    [stopped] = asked(llm, wanted, stop=["b"]).outputs
    assert (stopped.text, stopped.stop_reason) == ("aa", "b")
    [cut] = asked(llm, wanted, max_tokens=4).outputs
    assert (cut.text, cut.finish_reason) == ("aaba", "length")


def test_it_survives_preemption(make_llm: MakeLLM) -> None:
    wanted = StructuredOutputs(regex="[a-z]{40}")
    params = SamplingParams(max_tokens=60, temperature=1, seed=5, structured_outputs=wanted)
    prompts = ["one", "two", "three"]
    plenty = make_llm().generate(prompts, params, use_tqdm=False)
    tight = make_llm(num_gpu_blocks_override=33)
    few = tight.generate(prompts, params, use_tqdm=False)
    assert tight.stats().num_preemptions > 0
    assert [each.outputs[0].text for each in few] == [each.outputs[0].text for each in plenty]


def test_others_in_the_batch_are_not_changed(llm: LLM) -> None:
    free = SamplingParams(max_tokens=20, temperature=1, seed=11, ignore_eos=True)
    bound = SamplingParams(max_tokens=20, structured_outputs=StructuredOutputs(regex="[0-9]{9}"))
    (alone,) = llm.generate("hello", free, use_tqdm=False)
    beside = llm.generate(["a", "hello", "b"], [bound, free, bound], use_tqdm=False)
    assert beside[1].outputs[0].token_ids == alone.outputs[0].token_ids


def test_a_failure_while_matching_ends_that_request_alone(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    follow = Matcher.follow
    params = SamplingParams(max_tokens=9, structured_outputs=StructuredOutputs(regex="[0-9]{9}"))
    broken = llm.stream("a", params)
    other = llm.stream("b", params)
    next(broken)
    next(other)
    first = matcher_of(llm, 0)

    def fail(self: Matcher, output_token_ids: Any) -> Any:
        if self is first:
            raise MatchError("too complex")
        return follow(self, output_token_ids)

    monkeypatch.setattr(Matcher, "follow", fail)
    with pytest.raises(InvalidRequestError, match="any further: too complex") as refused:
        list(broken)
    assert refused.value.field == "structured_outputs"
    assert re.fullmatch("[0-9]{9}", list(other)[-1].outputs[0].text)


def matcher_of(llm: LLM, index: int) -> Matcher:
    """The matcher of the request that came at this place among those that run."""
    choice = list(llm.engine._roster.constrained.values())[index]
    assert choice.sampling_row.matcher is not None
    return choice.sampling_row.matcher


def test_a_schema_that_refers_to_itself_in_too_many_ways_is_refused_quickly():
    names = [f"#/$defs/{number}" for number in range(200)]
    wide = {"anyOf": [{"$ref": name} for name in names] * 20}
    schema = {"$defs": {str(number): wide for number in range(200)}, "$ref": names[0]}
    with pytest.raises(ValueError, match="in so many ways"):
        has_finite_answer(schema)


def test_grammars_are_kept_for_whom_they_were_compiled(llm: LLM) -> None:
    grammars = llm.engine.intake._grammars
    wanted = StructuredOutputs(regex="[a-c]{3}")
    kept = grammars.compile(wanted, tenant="a", cache_salt="s")
    assert grammars.compile(wanted.named("x"), tenant="a", cache_salt="s") is kept
    assert grammars.compile(wanted, tenant="b", cache_salt="s") is not kept
    assert grammars.compile(wanted, tenant="a") is not kept


def test_kept_grammars_are_bounded_by_number_and_by_size(llm: LLM) -> None:
    grammar = llm.engine.intake._grammars.compile(StructuredOutputs(regex="a"))
    small = [GrammarKey("", "", StructuredOutputs(regex="a" * size)) for size in range(1, 99)]
    large = [
        GrammarKey("", "", StructuredOutputs(choice=[f"{number}", "x" * 60_000]))
        for number in range(9)
    ]
    owned = [
        GrammarKey("é" * 15_000, "x" * 30_000, StructuredOutputs(regex=f"{number}"))
        for number in range(9)
    ]
    many = MOST_BYTES // 60_001
    for keys, most in ((small, MOST_GRAMMARS), (large, many), (owned, many)):
        cache = GrammarCache()
        for key in keys:
            cache.put(key, grammar)
            cache.put(key, grammar)
            assert cache.get(keys[0]) is grammar
        assert [cache.get(key) is grammar for key in keys].count(True) == most
        assert cache.get(keys[1]) is None
