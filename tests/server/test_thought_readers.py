"""Readers of answers that think first, whole or in any pieces."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagoda.server.forced_calls import ForcedArguments
from pagoda.server.reading import CallPiece, Piece, Said, TextPiece, Thought, ToolCall, joined
from pagoda.server.thought_forms import THOUGHT_FORMS, ThoughtForm, form_of
from pagoda.server.thought_readers import Channels, TaggedThoughts, ThoughtReader
from pagoda.server.tool_calls import PlainText
from pagoda.server.tool_forms import begin_reading
from server.calling_answers import ROME, SCHEMAS, WEATHER_ROME, hermes

_ANALYSIS = "<|channel|>analysis<|message|>"
_FINAL = "<|start|>assistant<|channel|>final<|message|>"

ANSWERS: dict[str, tuple[str, str, list[Said]]] = {
    "a thought": (
        "qwen3",
        "<think>\nHm. Yes.\n</think>\n\nIt is.\n",
        [Thought("Hm. Yes."), "It is.\n"],
    ),
    "none": ("qwen3", " It is <think>not</think>.\n", [" It is <think>not</think>.\n"]),
    "an empty one": ("qwen3", "<think>\n\n</think>\n\nIt is.", ["It is."]),
    "one that never ends": ("qwen3", "<think>\nHm. </thin\n", [Thought("Hm. </thin")]),
    "nothing behind it": ("qwen3", "<think>Hm.</think>\n\n", [Thought("Hm.")]),
    "half a mark": ("qwen3", "<thi", ["<thi"]),
    "white space before it": ("qwen3", "\n\n<think>a</think>b", [Thought("a"), "b"]),
    "marks within it": (
        "qwen3",
        "<think>a <think> </thin b</think></think>c",
        [Thought("a <think> </thin b"), "</think>c"],
    ),
    "a call within it": (
        "qwen3",
        f"<think>\n{hermes(ROME)}</think>\n{hermes(ROME)}",
        [Thought(hermes(ROME)), WEATHER_ROME],
    ),
    "text before a call": (
        "qwen3",
        f"<think>a</think>b\n{hermes(ROME)}c",
        [Thought("a"), "b", WEATHER_ROME, "\nc"],
    ),
    "begun already": ("deepseek_r1", "Hm.\n</think>\nIt is.", [Thought("Hm."), "It is."]),
    "begun already and again": ("deepseek_r1", "<think>a</think>b", [Thought("a"), "b"]),
    "begun and cut": ("deepseek_r1", "Hm.\n", [Thought("Hm.")]),
    "much white space": ("qwen3", f"<think>a{' ' * 600}</think>b", [Thought("a"), "b"]),
    "too much white space before it": ("qwen3", f"{' ' * 300}<think>a", [" " * 300 + "<think>a"]),
    "Seed's": ("seed_oss", "<seed:think>a</seed:think>b", [Thought("a"), "b"]),
    "Mistral's": ("mistral", "[THINK]a[/THINK]b", [Thought("a"), "b"]),
    "Granite's": (
        "granite",
        "Here is my thought process: a\n\nHere is my response: b",
        [Thought("a"), "b"],
    ),
    "Granite's, short": (
        "granite",
        "Here's my thought process:\na Here's my Here's my response:\nb",
        [Thought("a Here's my"), "b"],
    ),
    "channels": (
        "openai_gptoss",
        f"{_ANALYSIS}a <|x|> b<|end|>{_FINAL}c <|enb",
        [Thought("a <|x|> b"), "c <|enb"],
    ),
    "an answer's channel alone": ("openai_gptoss", "<|channel|>final<|message|>c", ["c"]),
    "no channel": ("openai_gptoss", "analysis: c", ["analysis: c"]),
    "a channel that never ends": ("openai_gptoss", f"{_ANALYSIS}a<|en", [Thought("a<|en")]),
    "calls in a message before a thought": (
        "openai_gptoss",
        f"<|channel|>final<|message|>{hermes(ROME)}x<|end|>{_ANALYSIS}b",
        [WEATHER_ROME, "x", Thought("b")],
    ),
    "a head without an end": ("openai_gptoss", f"<|channel|>{'a' * 300}", ["a" * 300]),
    "too long a head": (
        "openai_gptoss",
        f"<|channel|>analysis{'a' * 300}<|message|>b",
        [f"analysis{'a' * 300}<|message|>b"],
    ),
    "half a head": ("openai_gptoss", f"{_ANALYSIS}a<|end|><|start|>assis", [Thought("a")]),
    "several channels": (
        "openai_gptoss",
        f"{_ANALYSIS}a<|end|><|start|>assistant<|channel|>commentary<|message|>b<|end|>"
        f"<|start|>assistant{_ANALYSIS}c<|end|>{_FINAL}d<|return|>",
        [Thought("a"), "b", Thought("c"), "d"],
    ),
}
"""The form, the answer, and what is thought and said in it."""


def reader(form: ThoughtForm) -> ThoughtReader:
    kind = Channels if form.body else TaggedThoughts
    return kind(form, begin_reading("hermes", SCHEMAS), is_open=form.is_open)


def read(reader: ThoughtReader, parts: list[str]) -> list[Said]:
    """What is said in an answer that comes in these parts; asserts where its texts stand."""
    readings = [reader.feed(part, finished=False) for part in parts]
    readings.append(reader.feed("", finished=True))
    pieces: list[Piece] = [piece for reading in readings for piece in reading.pieces]
    answer, end = "".join(parts), 0
    for piece in pieces:
        if isinstance(piece, CallPiece):
            continue
        assert answer[piece.start :].startswith(piece.text)
        assert piece.start >= end
        end = piece.start + len(piece.text)
        if isinstance(piece, TextPiece) and reader.thought_end < len(answer):
            assert piece.text
    return joined(pieces)


@pytest.mark.parametrize("size", [1, 2, 7, 9999])
@pytest.mark.parametrize("name", ANSWERS)
def test_thoughts_are_told_apart_in_any_pieces(name: str, size: int) -> None:
    form, answer, said = ANSWERS[name]
    parts = [answer[start : start + size] for start in range(0, len(answer), size)]
    assert read(reader(THOUGHT_FORMS[form]), parts) == said


@pytest.mark.parametrize(
    ("name", "end"),
    [("a thought", "</think>"), ("channels", "<|end|>"), ("Mistral's", "[/THINK]")],
)
def test_a_thought_ends_behind_its_mark(name: str, end: str) -> None:
    form, answer, _ = ANSWERS[name]
    found = reader(THOUGHT_FORMS[form])
    found.feed(answer, finished=True)
    assert found.thought_end == answer.index(end) + len(end)


def test_an_answer_without_a_thought_ends_none() -> None:
    found = reader(THOUGHT_FORMS["qwen3"])
    found.feed("It is <think>", finished=True)
    assert found.thought_end == 0


def test_thoughts_are_told_as_they_come() -> None:
    found = reader(THOUGHT_FORMS["qwen3"])
    said = ["<think>", "\nHm", ", </th", "at", "\n</think>\n", "\nYes", "."]
    readings = [found.feed(part, finished=False) for part in said]
    assert [each.thought for each in readings] == ["", "Hm", ",", " </that", "", "", ""]
    assert [each.content for each in readings] == ["", "", "", "", "", "Yes", "."]


_BITS = ("<think>", "</think>", "<thi", "nk>", "a", " ", "\n", "<tool_call>", hermes(ROME), "</th")


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(_BITS), max_size=12), st.booleans(), st.data())
def test_however_an_answer_is_cut_the_same_is_said(
    bits: list[str], is_open: bool, data: st.DataObject
) -> None:
    answer = "".join(bits)
    form = THOUGHT_FORMS["deepseek_r1" if is_open else "qwen3"]
    places = data.draw(st.lists(st.integers(0, len(answer)), max_size=6).map(sorted))
    edges = [0, *places, len(answer)]
    parts = [answer[a:b] for a, b in itertools.pairwise(edges)]
    assert read(reader(form), parts) == read(reader(form), [answer])


@pytest.mark.parametrize("name", ["qwen3", "openai_gptoss"])
def test_each_character_of_a_long_thought_is_looked_at_once(name: str) -> None:
    form = THOUGHT_FORMS[name]
    found = reader(form)
    found.feed(form.opening[-1] + "analysis" + form.body + "a", finished=False)
    for _ in range(10_000):
        assert not found.feed(" \n", finished=False).pieces
        assert len(found._text) < 20
    assert found.feed("b", finished=True).thought == " \n" * 10_000 + "b"


@pytest.mark.parametrize(
    ("name", "begun", "is_within"),
    [
        ("qwen3", "assistant\n", False),
        ("qwen3", "assistant\n<think>\n", True),
        ("qwen3", "assistant\n<think>\n\n</think>\n\n", False),
        ("qwen3", "assistant\n<think>\nSo far", True),
        ("deepseek_r1", "", True),
        ("deepseek_r1", "<think>\n", True),
        ("deepseek_r1", "<think></think>", False),
        ("openai_gptoss", "<|message|>analysis<|end|><|start|>assistant", False),
        ("openai_gptoss", f"{_ANALYSIS}a<|end|>{_FINAL}So far", False),
        ("openai_gptoss", f"<|message|>Hi<|end|><|start|>assistant{_ANALYSIS}So far", True),
    ],
)
def test_a_prompt_may_have_begun_the_thought(name: str, begun: str, is_within: bool) -> None:
    assert THOUGHT_FORMS[name].goes_on_in(begun) is is_within


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("{{ m.split('</think>')[-1] }}", "qwen3"),
        ("{{ messages }}<|channel|>", None),
        ("<|start|>assistant<|channel|>analysis<|message|></think>", "openai_gptoss"),
        ("Here is my thought process: … Here is my response:", "granite"),
        ("[THINK] [/THINK]", "mistral"),
        ("<seed:think></seed:think>", "seed_oss"),
        ("", None),
    ],
)
def test_a_form_is_found(template: str, name: str | None) -> None:
    assert form_of(template) == (None if name is None else THOUGHT_FORMS[name])


def test_a_forced_call_is_behind_the_thought() -> None:
    parts = ["<think>a</think>", "\n", "{}"]
    found = TaggedThoughts(THOUGHT_FORMS["qwen3"], ForcedArguments("clock"), is_open=False)
    assert read(found, parts) == [Thought("a"), ToolCall("clock", "{}")]
    cut = TaggedThoughts(THOUGHT_FORMS["qwen3"], ForcedArguments("clock"), is_open=False)
    assert read(cut, parts[:1]) == [Thought("a")]


def test_without_tools_all_behind_it_is_text() -> None:
    found = TaggedThoughts(THOUGHT_FORMS["qwen3"], PlainText(), is_open=True)
    assert read(found, ["a</think>", hermes(ROME)]) == [Thought("a"), hermes(ROME)]
