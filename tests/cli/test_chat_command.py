from __future__ import annotations

import signal
from collections.abc import AsyncGenerator, Callable, Iterator
from typing import Any

import pytest

from pagoda.cli.main import run
from pagoda.engine.outputs import RequestOutput
from server.fake_engine import FakeEngine

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
    first, second = captured.err.splitlines()
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
    assert captured.err.startswith("messages='106 tokens': at most 63 (/reset starts anew)\n")


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
