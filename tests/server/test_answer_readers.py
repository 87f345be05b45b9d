"""Readers of answers: what finds the calls of tools in them, whole or in any pieces."""

from __future__ import annotations

import os
from random import Random, SystemRandom
from typing import Any

import pytest

from pagoda.server import json_calls
from pagoda.server.forced_calls import ForcedArguments, ForcedCalls
from pagoda.server.json_end import JSONEnd
from pagoda.server.reading import CallPiece, TextPiece, ToolCall, calls_in, joined
from pagoda.server.tool_calls import AnswerReader, FirstCall, PlainText
from pagoda.server.tool_forms import begin_reading
from server.calling_answers import (
    CALLS,
    CUT_CALLS,
    NAMES,
    OSLO,
    READ,
    ROME,
    SCHEMAS,
    WEATHER_OSLO,
    WEATHER_ROME,
    glm,
    hermes,
    llama,
    qwen_coder,
)

Said = list[str | ToolCall]


def reader(form: Any) -> AnswerReader:
    return begin_reading(form, SCHEMAS)


def cut(text: str, size: int) -> list[str]:
    return [text[start : start + size] for start in range(0, len(text), size)]


def read(reader: AnswerReader, pieces: list[str]) -> Said:
    """What is said in an answer that comes in these pieces; asserts where its texts stand."""
    readings = [reader.feed(piece, finished=False) for piece in pieces]
    readings.append(reader.feed("", finished=True))
    found = [piece for reading in readings for piece in reading.pieces]
    answer = "".join(pieces)
    for piece in found:
        if isinstance(piece, TextPiece):
            assert answer[piece.start : piece.end] == piece.text
    return joined(found)


@pytest.mark.parametrize("name", READ)
def test_calls_are_found(name: str) -> None:
    form, text, content, calls = READ[name]
    reading = reader(form).feed(text, finished=True)
    assert reading.content == content
    assert calls_in(reading.pieces) == list(calls)


@pytest.mark.parametrize("size", [1, 2, 7])
@pytest.mark.parametrize("name", READ)
def test_calls_are_found_in_any_pieces(name: str, size: int) -> None:
    form, text, _, _ = READ[name]
    whole = joined(reader(form).feed(text, finished=True).pieces)
    assert read(reader(form), cut(text, size)) == whole


ORDERED: dict[str, tuple[str, str, Said]] = {
    "Hermes'": (
        "hermes",
        f"Rome: {hermes(ROME)}\nand Oslo: {hermes(OSLO)} both.\n",
        ["Rome:", WEATHER_ROME, " \nand Oslo:", WEATHER_OSLO, "  both."],
    ),
    "Mistral's": (
        "mistral",
        f"A[TOOL_CALLS]weather[ARGS]{ROME}B[TOOL_CALLS]weather[ARGS]{OSLO}C",
        ["A", WEATHER_ROME, "B", WEATHER_OSLO, "C"],
    ),
    "Llama's": ("llama", f"{llama(ROME)};{llama(OSLO)} C", [WEATHER_ROME, WEATHER_OSLO, "C"]),
}


@pytest.mark.parametrize("size", [1, 7, 999])
@pytest.mark.parametrize("name", ORDERED)
def test_texts_and_calls_keep_their_order(name: str, size: int) -> None:
    form, text, said = ORDERED[name]
    assert read(reader(form), cut(text, size)) == said


def test_an_answer_without_calls_is_text() -> None:
    text = f"It is {hermes(ROME)}"
    assert read(PlainText(), cut(text, 7)) == [text]


def test_text_outside_of_calls_is_told_as_it_comes() -> None:
    hermes_reader = reader("hermes")
    assert hermes_reader.feed("It is <to", finished=False).content == "It is"
    assert hermes_reader.feed(" you", finished=False).content == " <to you"
    assert reader("llama").feed("It", finished=False).content == "It"


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("hermes", "<tool_call>x"),
        ("hermes", '<tool_call>{"name": 5}</tool_call>'),
        ("hermes", '<tool_call>{"name": "weather", </tool_call>'),
        ("hermes", '<tool_call>{"name": "weather]</tool_call>\n'),
        ("hermes", '<tool_call>{"name": "weather"]</tool_call>'),
        ("hermes", "<tool_call>" + " " * 300),
        ("mistral", "[TOOL_CALLS]weather: "),
        ("glm45", "<tool_call>weather of"),
        ("glm45", "<tool_call>rm<arg_key>"),
        ("qwen3_coder", "<tool_call>\n<func>"),
        ("qwen3_coder", "<tool_call>\n<function=rm>"),
        ("llama", '{"Rome": "warm"}'),
        ("llama", "<|python_tag|>print(1)"),
    ],
)
def test_what_cannot_be_a_call_any_more_is_told_at_once(form: str, text: str) -> None:
    assert reader(form).feed(text, finished=False).content == text.rstrip()


STREAMED = {
    "Hermes'": ("hermes", '<tool_call>\n{"name": "weather", "arguments": ', "}\n</tool_call>"),
    "Mistral's list": ("mistral", '[TOOL_CALLS] [{"name": "weather", "arguments": ', "}]"),
    "Mistral's newer": ("mistral", "[TOOL_CALLS]weather[ARGS]", ""),
    "Llama's": ("llama", '{"name": "weather", "parameters": ', "}"),
}


@pytest.mark.parametrize("name", STREAMED)
def test_arguments_are_told_as_they_come(name: str) -> None:
    form, before, behind = STREAMED[name]
    streamed = reader(form)
    assert not any(streamed.feed(character, finished=False).calls for character in before)
    [first] = streamed.feed(OSLO[:3], finished=False).calls
    assert first == CallPiece(0, OSLO[:3], "weather")
    for character in OSLO[3:]:
        assert streamed.feed(character, finished=False).calls == (CallPiece(0, character),)
    assert not any(streamed.feed(character, finished=False).calls for character in behind)


@pytest.mark.parametrize(
    ("form", "text"),
    [("glm45", glm(("city", "Rome in"))), ("qwen3_coder", qwen_coder(("city", "Rome in")))],
)
def test_marked_strings_are_told_as_they_come(form: str, text: str) -> None:
    streamed = reader(form)
    before, _, behind = text.partition("Rome in")
    told = [streamed.feed(each, finished=False).calls for each in (before, "Rome", " in", behind)]
    assert [calls_told.arguments for [calls_told] in told] == ['{"city": "', "Rome", " in", '"}']


@pytest.mark.parametrize(
    ("form", "head"),
    [("glm45", "<tool_call>weather<arg_key>"), ("qwen3_coder", "<tool_call><function=weather>")],
)
def test_a_marked_call_is_told_once_its_name_is_known(form: str, head: str) -> None:
    assert reader(form).feed(head, finished=False).calls == (CallPiece(0, "{", "weather"),)


def test_a_name_that_comes_last_is_waited_for() -> None:
    streamed = reader("llama")
    assert not streamed.feed(f'{{"parameters": {ROME}, "name": "weath', finished=False).calls
    assert streamed.feed('er"', finished=False).calls == (CallPiece(0, ROME, "weather"),)


@pytest.mark.parametrize(
    ("num_characters", "calls"),
    [
        (len(CALLS), CUT_CALLS),
        (CALLS.index('{"at"'), (WEATHER_ROME, ToolCall("clock", ""))),
        (CALLS.index('ck"'), (WEATHER_ROME,)),
        (CALLS.index("ome"), (ToolCall("weather", '{"city": "R'),)),
        (1, ()),
    ],
)
@pytest.mark.parametrize("size", [1, 7, 99])
def test_forced_calls_that_are_cut_are_told_as_far_as_they_went(
    num_characters: int, calls: tuple[ToolCall, ...], size: int
) -> None:
    assert read(ForcedCalls(NAMES), cut(CALLS[:num_characters], size)) == list(calls)


def test_what_follows_forced_calls_against_the_grammar_is_text() -> None:
    text = f'[{{"name": "weather", "parameters": {ROME}}}, 5] x'
    for size in (1, 7, 99):
        assert read(ForcedCalls(NAMES), cut(text, size)) == [WEATHER_ROME, " 5] x"]


def test_a_named_call_is_told_even_if_it_is_cut_at_once() -> None:
    assert read(ForcedArguments("weather"), []) == [ToolCall("weather", "")]
    assert read(ForcedArguments("weather"), list(ROME)) == [WEATHER_ROME]


def test_one_call_is_enough_where_no_more_are_wanted() -> None:
    pieces = [hermes(ROME), hermes(OSLO)]
    assert read(FirstCall(reader("hermes")), pieces) == [WEATHER_ROME]
    assert read(FirstCall(reader("hermes")), ["".join(pieces)]) == [WEATHER_ROME]


FRAGMENTS = [
    "<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "<|python_tag|>", "weather", '"name"',
    '"weather"', '{"name": "weather", "arguments": ', "{}", "{", "}", "[", "]", '"', "\\", ":", ",",
    "; ", "\n", "\x0b", " ", "é", "<", hermes(ROME), hermes(OSLO), llama(ROME), '["', ',"',
]  # fmt: skip


class CountingEnd(JSONEnd):
    num_looked_at = 0

    def look(self, text: str, position: int) -> int:
        end = super().look(text, position)
        CountingEnd.num_looked_at += end - position
        return end


def test_any_pieces_bring_the_same_and_are_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawn without Hypothesis, whose drawing took twice as long as the reading."""
    monkeypatch.setattr(json_calls, "JSONEnd", CountingEnd)
    first = int(os.environ.get("SEED", SystemRandom().randrange(2**32)))
    for seed in range(first, first + 1200):
        random = Random(seed)
        form = random.choice(["glm45", "hermes", "llama", "mistral", "qwen3_coder"])
        text = "".join(random.choices(FRAGMENTS, k=random.randint(0, 40)))
        for parts in (cut(text, random.randint(1, 9)), [text]):
            CountingEnd.num_looked_at = 0
            whole = reader(form).feed(text, finished=True)
            said = f"SEED={seed}: {form} {parts!r}"
            assert read(reader(form), parts) == joined(whole.pieces), said
            assert CountingEnd.num_looked_at <= 2 * len(text), said  # once, by two readers


@pytest.mark.parametrize("unit", ['<tool_call>["', '<tool_call>[",', "<tool_call>[", '"\\"'])
def test_a_long_answer_is_not_read_again_for_each_piece(
    unit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_calls, "JSONEnd", CountingEnd)
    CountingEnd.num_looked_at = 0
    text = '<tool_call>{"' + unit * 2000
    read(reader("hermes"), list(text))
    assert CountingEnd.num_looked_at <= len(text)
