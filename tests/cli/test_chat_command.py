from __future__ import annotations

import signal
from collections.abc import AsyncGenerator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pagoda.cli.main import run
from pagoda.engine.outputs import RequestOutput
from pagoda.server.keys import KeyRing
from pagoda.server.listener import bind, url_of
from pagoda.tiers.key_file import write_new_secret
from server.fake_engine import FakeEngine
from server.live import live_server

ALL = "zero one two three four five six seven"


def prompts_of(engine: FakeEngine) -> list[str]:
    return ["".join(map(chr, asked["prompt"])) for asked in engine.asked]


def test_a_turn_streams_and_shows_what_came_from_the_cache(
    engine: FakeEngine, typed: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    typed("hi\n/reset\nhi\n")
    assert run(["chat"]) == 0
    captured = capsys.readouterr()
    assert captured.out == f"{ALL}\n" * 2
    first, cut, second, _ = captured.err.splitlines()
    assert cut == "cut: the model's window is full (/reset starts anew)"
    assert first.startswith("prompt 8 tokens, 0 from the cache · 8 new tokens, ")
    assert second.startswith("prompt 8 tokens, 7 from the cache · 8 new tokens, ")
    assert second.endswith(" tokens/s")
    assert not engine.is_running


def test_the_conversation_grows_until_it_is_reset(
    engine: FakeEngine, typed: Callable[[str], None]
) -> None:
    typed("a\n\n  b  \n/reset\nc\n/exit\nd\n")
    assert run(["chat", "--system", "s", "--max-tokens", "1"]) == 0
    assert prompts_of(engine) == [
        "<system>s<user>a",
        "<system>s<user>a<assistant>zero<user>b",
        "<system>s<user>c",
    ]


def test_a_turn_that_is_refused_is_taken_back(
    engine: FakeEngine, typed: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    typed(f"{'x' * 100}\nhi\n")
    assert run(["chat", "--max-tokens", "1"]) == 0
    assert prompts_of(engine) == ["<user>hi"]
    captured = capsys.readouterr()
    assert captured.out == "zero\n"
    told, _, _ = captured.err.partition("\n")
    assert told.startswith("This model's maximum context length is 64 tokens.")
    assert told.endswith("messages='106 tokens': at most 63 (/reset starts anew)")


def test_an_unknown_command_shows_help(
    engine: FakeEngine, typed: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    typed("/what\n")
    assert run(["chat"]) == 0
    assert "/reset forgets the conversation" in capsys.readouterr().err
    assert engine.asked == []


class InterruptedEngine(FakeEngine):
    """Somebody presses Ctrl-C after the third token of the first answer."""

    async def generate(self, *args: Any, **options: Any) -> AsyncGenerator[RequestOutput, None]:
        is_first = not self.asked
        stream = super().generate(*args, **options)
        try:
            async for output in stream:
                yield output
                if is_first and len(output.outputs[0].token_ids) == 3:
                    signal.raise_signal(signal.SIGINT)
        finally:
            await stream.aclose()


@pytest.fixture
def control_c() -> Iterator[None]:
    """As in a terminal: a process started in the background is made to ignore SIGINT."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("control_c")
def test_control_c_stops_the_answer_not_the_program(
    monkeypatch: pytest.MonkeyPatch,
    typed: Callable[[str], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    engine = InterruptedEngine()
    monkeypatch.setattr("pagoda.cli.chat.load_engine", lambda options, console: engine)
    typed("a\nb\n")
    assert run(["chat", "--max-tokens", "5"]) == 0
    assert capsys.readouterr().out == "zero one two\nzero one two three four\n"
    assert prompts_of(engine) == ["<user>a", "<user>a<assistant>zero one two<user>b"]
    assert len(engine.aborted) == 1


def test_a_model_is_named_as_for_serve(
    engine: FakeEngine, typed: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    typed("")
    assert run(["chat", "some/model"]) == 0
    assert engine.options.model == "some/model"
    assert run(["chat", "some/model", "--model", "other"]) == 2
    assert "--model='other': some/model is named as well" in capsys.readouterr().err


def test_an_answer_that_was_cut_says_by_what(
    engine: FakeEngine, typed: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    typed("hi\n")
    assert run(["chat", "--max-tokens", "2"]) == 0
    assert capsys.readouterr().err.endswith("cut: --max-tokens allows no more\n")
    engine.says = ("done",)
    typed("hi\n")
    assert run(["chat"]) == 0
    assert "cut" not in capsys.readouterr().err


@pytest.fixture
def url(engine: FakeEngine) -> Iterator[str]:
    """A server that wants a key."""
    with live_server(engine, keys=KeyRing({"the-only-key": "all"})) as url:
        yield url


def test_a_running_server_answers_as_well(
    url: str,
    engine: FakeEngine,
    typed: Callable[[str], None],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PAGODA_API_KEY", "the-only-key")
    typed(f"a\nb\n/reset\n{'x' * 100}\na\n")
    flags = ["--system", "s", "--max-tokens", "2", "--temperature", "0", "--top-k", "3"]
    assert run(["chat", "--url", f"{url}/v1/", *flags]) == 0
    captured = capsys.readouterr()
    assert captured.out == "zero one\n" * 3
    remarks = [line for line in captured.err.splitlines() if not line.startswith("INFO ")]
    first, cut, _, _, refused, again, _ = remarks
    assert first.startswith("prompt 16 tokens, 0 from the cache · 2 new tokens, ")
    assert cut == "cut: --max-tokens allows no more"
    assert "at most" in refused
    assert refused.endswith("(/reset starts anew)")
    assert again.startswith("prompt 16 tokens, 15 from the cache")
    sampling = engine.asked[0]["sampling"]
    assert (sampling.max_tokens, sampling.temperature, sampling.top_k) == (2, 0.0, 3)
    assert not hasattr(engine, "options"), "no model is loaded beside the server's"


@pytest.mark.parametrize(
    ("key", "flags", "code", "told"),
    [
        ("the-only-key", ["--model", "another"], 0, "model='another'"),
        (
            "a-wrong-key",
            [],
            1,
            "key is needed; give it as --api-key or in PAGODA_API_KEY",
        ),
        ("the-only-key", ["--block-size", "4"], 2, "the server has its own options"),
    ],
)
def test_what_the_server_does_not_have_is_told(
    key: str,
    flags: list[str],
    code: int,
    told: str,
    url: str,
    typed: Callable[[str], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    typed("hi\n")
    assert run(["chat", "--url", url, "--api-key", key, *flags]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert told in captured.err


@pytest.mark.parametrize("is_local", [True, False])
def test_what_a_model_thinks_is_shown_beside_its_answer(
    is_local: bool,
    url: str,
    engine: FakeEngine,
    typed: Callable[[str], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    engine.tokenizer.chat_template = "<think></think>"
    engine.says = ("<think>", "Hm.", "</think>", "It", " is.")
    typed("hi\nand?\n")
    flags = [] if is_local else ["--url", url, "--api-key", "the-only-key"]
    assert run(["chat", *flags, "--chat-template-kwargs", '{"enable_thinking": true}']) == 0
    captured = capsys.readouterr()
    assert captured.out == "It is.\n" * 2
    assert captured.err.count("Hm.") == 2, "lines of the log may stand behind it"
    assert engine.tokenizer.options.template_kwargs == {"enable_thinking": True}
    assert engine.tokenizer.messages[1] == {"role": "assistant", "content": "It is."}


def test_the_template_is_told_what_it_should_know(
    engine: FakeEngine, typed: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    typed("hi\n")
    assert run(["chat", "--chat-template-kwargs", '{"enable_thinking": false}']) == 0
    assert engine.tokenizer.options.template_kwargs == {"enable_thinking": False}
    for wrong in ("x", "[1]", '{"a": [1]}'):
        assert run(["chat", "--chat-template-kwargs", wrong]) == 2
        assert "--chat-template-kwargs=" in capsys.readouterr().err


def test_a_server_that_is_not_there_is_told(
    typed: Callable[[str], None], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    typed("hi\n")
    with bind("127.0.0.1", 0) as listener:  # it never listens
        assert run(["chat", "--url", url_of(listener)]) == 1
    assert "does not answer" in capsys.readouterr().err
    assert run(["chat", "--url", "ftp://x"]) == 2
    capsys.readouterr()
    assert run(["chat", "--url", "http://127.0.0.1:1", "--kv-retention", "window:64"]) == 2
    assert "--kv-retention='window:64': not beside url" in capsys.readouterr().err
    write_new_secret("file", tmp_path / "key")
    tier = ["--kv-tier", "redis://me:secret@host:1", "--kv-tier-key-file", str(tmp_path / "key")]
    assert run(["chat", "--url", "http://127.0.0.1:1", *tier]) == 2
    told = capsys.readouterr().err
    assert "--kv-tier=['redis://…@host:1']: not beside url" in told
    assert "secret" not in told
