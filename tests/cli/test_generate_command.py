from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from pagoda.cli.main import run
from pagoda.errors import shorten
from server.fake_engine import FIRST_WORD_ID, FakeEngine


def prompts_of(engine: FakeEngine) -> list[str]:
    """What it was asked, each token a character."""
    return ["".join(map(chr, asked["prompt"])) for asked in engine.asked]  # type: ignore[call-overload]


def test_one_answer_is_all_that_stdout_gets(
    engine: FakeEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["generate", "hello", "--max-tokens", "3"]) == 0
    captured = capsys.readouterr()
    assert captured.out == "zero one two\n"
    assert "prompt 5 tokens, 0 from the cache · 3 new tokens, " in captured.err
    assert not engine.is_running


def test_several_answers_in_order(engine: FakeEngine, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["generate", "a", "bc", "a", "--max-tokens", "2", "--n", "2"]) == 0
    answers = [
        f"==> {number}.{choice}: {prompt} <==\n{text}\n"
        for number, prompt in enumerate(("a", "bc", "a"), 1)
        for choice, text in enumerate(("zero one", "one two"), 1)
    ]
    assert capsys.readouterr().out == "\n".join(answers)


def test_each_of_several_answers_stands_under_its_prompt(
    engine: FakeEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    engine.says = ("a\n\n", "b")
    assert run(["generate", "one\n  line", "x" * 30 + " y" * 16]) == 0
    first, second = capsys.readouterr().out.split("==> 2: ")
    assert first.endswith("==> 1: one line <==\na\n\nb\n\n")
    assert second == "x" * 30 + " y" * 14 + " … <==\na\n\nb\n"


def test_json_is_one_object_a_line(engine: FakeEngine, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["generate", "é", "é", "--json", "--max-tokens", "2"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    choice = {
        "index": 0,
        "text": "zero one",
        "token_ids": [FIRST_WORD_ID, FIRST_WORD_ID + 1],
        "finish_reason": "length",
        "stop_reason": None,
    }
    usage = {"prompt_tokens": 1, "completion_tokens": 2}
    assert lines == [
        {
            "index": index,
            "prompt": "é",
            "choices": [choice],
            "usage": {**usage, "prompt_tokens_details": {"cached_tokens": 0}},
        }
        for index in range(2)
    ]


def test_json_may_have_log_probabilities(
    engine: FakeEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["generate", "x", "--json", "--max-tokens", "2", "--logprobs", "1"]) == 0
    [choice] = json.loads(capsys.readouterr().out)["choices"]
    assert choice["logprobs"] == {
        "tokens": ["zero", "one"],
        "token_logprobs": [-1.0, -1.0],
        "top_logprobs": [{"zero": -1.0, "é": -0.5}, {"one": -1.0, "é": -0.5}],
        "text_offset": [0, 4],
    }
    assert run(["generate", "x", "--logprobs", "1"]) == 2
    assert "--logprobs=1: is told with --json only" in capsys.readouterr().err


def test_sampling_flags_reach_the_engine(engine: FakeEngine) -> None:
    flags = {
        "max_tokens": 4,
        "min_tokens": 2,
        "temperature": 0.0,
        "top_p": 0.5,
        "top_k": 3,
        "min_p": 0.1,
        "repetition_penalty": 1.2,
        "presence_penalty": 0.5,
        "frequency_penalty": -0.5,
        "n": 2,
    }
    arguments = [f"--{name.replace('_', '-')}={value}" for name, value in flags.items()]
    assert run(["generate", "x", *arguments, "--stop", "a", "--stop", "b", "--ignore-eos"]) == 0
    sampling = engine.asked[0]["sampling"]
    assert {name: getattr(sampling, name) for name in flags} == flags
    assert sampling.stop == ("a", "b")
    assert sampling.ignore_eos is True


def test_chat_puts_prompts_through_the_template(engine: FakeEngine) -> None:
    assert run(["generate", "hi", "--chat"]) == 0
    assert prompts_of(engine) == ["<user>hi"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("prompts.txt", "one\n\n  \ntwo words\r\n"),
        ("prompts.jsonl", '"one"\n{"prompt": "two words\\r", "id": 7}\n'),
    ],
)
def test_prompts_from_a_file(name: str, text: str, tmp_path: Path, engine: FakeEngine) -> None:
    (tmp_path / name).write_bytes(text.encode())
    assert run(["generate", "--file", str(tmp_path / name)]) == 0
    assert [each.rstrip("\r") for each in prompts_of(engine)] == ["one", "two words"]


def test_prompts_from_stdin(engine: FakeEngine, typed: Callable[[str], None]) -> None:
    typed("one\ntwo\n")
    assert run(["generate"]) == 0
    assert prompts_of(engine) == ["one", "two"]


@pytest.mark.parametrize(
    "line", ["{", "5", '{"text": "x"}', '{"prompt": 5}', "null", "[" * 100_000]
)
def test_a_bad_line_is_refused(
    line: str, tmp_path: Path, engine: FakeEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(f'"fine"\n\n{line}\n')
    assert run(["generate", "--file", str(path)]) == 2
    told = capsys.readouterr().err
    assert f"file={shorten(line)}: line 3 of {path}: must be a JSON string" in told
    assert engine.asked == []


def test_two_sources_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["generate", "x", "--file", str(tmp_path / "y")]) == 2
    assert "prompts are given as arguments too" in capsys.readouterr().err


@pytest.mark.parametrize("chat", [[], ["--chat"]])
def test_a_prompt_that_is_refused_is_named_before_any_is_begun(
    chat: list[str], engine: FakeEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["generate", "fine", "long" * 16, "fine too", *chat]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("pagoda: error: This model's maximum context length is 64")
    assert " prompt 2='" in captured.err
    assert engine.asked == []
    assert not engine.is_running
