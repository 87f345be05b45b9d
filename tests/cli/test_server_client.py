"""Commands that ask a server, where it is another one than they think."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import httpx
import pytest

from cli.http_server import serving
from pagoda.cli.chat_partner import Said, ServerError
from pagoda.cli.chat_server import ServerPartner
from pagoda.cli.main import run
from pagoda.request import SamplingParams


@contextmanager
def saying(content: bytes) -> Iterator[str]:
    """A server that says the same to whatever it is asked."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(content)

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.do_GET()

    with serving(Handler) as url:
        yield url


@pytest.mark.parametrize("content", [b"<html>", b"[]", b'{"id": "x"}', b"\xff", b"[" * 100_000])
def test_an_answer_of_another_program_is_no_answer(
    content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, prompt = tmp_path / "x.session", tmp_path / "prompt"
    file.write_bytes(b"x")
    prompt.write_text("x")
    with saying(content) as url:
        for command in (
            ["session", "import", str(file)],
            ["session", "export", "x", str(tmp_path / "new")],
            ["explain", "x"],
            ["explain", str(prompt)],
        ):
            assert run([*command, "--url", url]) == 2
            assert "answered with status 200: it is not Pagoda's" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


@contextmanager
def exporting(content: bytes) -> Iterator[str]:
    """A server that has one session."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("X-Pagoda-Exported-Tokens", "7")
            self.send_header("X-Pagoda-Tokens", "8")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *args: object) -> None:
            pass

    with serving(Handler) as url:
        yield url


@pytest.mark.parametrize("name", [".", "/", "nowhere/x", "x" * 300])
def test_a_session_that_cannot_be_written_is_told(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with exporting(b"x") as url:
        assert run(["session", "export", "x", name, "--url", url]) == 2
    assert "cannot be written" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_session_is_written_beside_what_has_a_name_like_it(tmp_path: Path) -> None:
    mine = tmp_path / "tea.part"
    mine.write_bytes(b"mine")
    with exporting(b"all of it") as url:
        assert run(["session", "export", "x", str(tmp_path / "tea"), "--url", url]) == 0
    assert {each.name: each.read_bytes() for each in tmp_path.iterdir()} == {
        "tea": b"all of it",
        "tea.part": b"mine",
    }


def test_a_session_comes_out_of_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    with saying(b"{}") as url:
        assert run(["session", "import", "/dev/zero", "--url", url]) == 2
    assert "file='/dev/zero': must be a file" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["chat", "doctor", "explain", "session"])
@pytest.mark.parametrize("key", ["schlüssel", ""])
def test_what_is_no_key_is_refused(
    command: str,
    key: str,
    typed: Callable[[str], None],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    url = "http://127.0.0.1:1"
    asked = {
        "chat": ["chat", "--url", url],
        "doctor": ["doctor", url],
        "explain": ["explain", "x", "--url", url],
        "session": ["session", "export", "x", "x", "--url", url],
    }[command]
    assert run([*asked, "--api-key", key]) == 2
    assert "--api-key='…': must be plain ASCII" in capsys.readouterr().err
    monkeypatch.setenv("PAGODA_API_KEY", key)
    assert run(asked) == 2
    assert "--api-key='…': must be plain ASCII" in capsys.readouterr().err


def test_an_answer_that_is_nested_too_deeply_names_no_model() -> None:
    async def open_partner() -> None:
        transport = httpx.MockTransport(lambda _: httpx.Response(200, content=b"[" * 100_000))
        await ServerPartner("http://server", transport=transport).open()

    with pytest.raises(ServerError, match="the server names no model"):
        asyncio.run(open_partner())


def said(content: str) -> Said:
    """The whole answer of a server that streams this."""
    return all_said(content)[-1]


def all_said(content: str) -> list[Said]:
    """The answer as it grows."""

    async def ask() -> list[Said]:
        transport = httpx.MockTransport(lambda request: httpx.Response(200, text=content))
        partner = ServerPartner("http://server", model="m", transport=transport)
        answer = partner.answer([{"role": "user", "content": "x"}], SamplingParams())
        return [each async for each in answer]

    return asyncio.run(ask())


def test_events_may_be_written_in_several_ways() -> None:
    told = said(
        ": a comment\n\nevent: message\n"
        'data:{"choices": [{"delta": {"content": "It"}}]}\n\ndata:\n\n'
        'data: {"choices": [{"delta": {"content": " is."}, "finish_reason": "stop"}]}\n\n'
        'data: {"choices": [{"index": 0}], "error": null}\n\n'
        "data: [DONE]\n\n"
    )
    assert (told.text, told.finish_reason) == ("It is.", "stop")


def delta(name: str, text: str) -> str:
    """An event with a part of an answer, `text` being written as it is."""
    return f'data: {{"choices": [{{"delta": {{"{name}": "{text}"}}}}]}}\n\n'


def test_a_pair_of_surrogates_in_two_events_is_one_character() -> None:
    first, second = r"\ud83d", r"\ude00"
    told = said(
        delta("reasoning", f"hm{first}")
        + delta("reasoning", second)
        + delta("content", f"a{first}")
        + delta("content", "")
        + delta("content", f"{second}b{first}{second}")
    )
    assert (told.text, told.thought) == ("a😀b😀", "hm😀")


def test_half_a_character_is_not_told_before_its_other_half() -> None:
    events = delta("content", r"a\ud83d") + delta("content", r"\ude00")
    assert [each.text for each in all_said(events)] == ["a", "a😀"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (f"data: {'[' * 100_000}\n\n", "no event of a chat"),
        (delta("content", r"a\ud800b"), "no event of a chat"),
        (delta("content", r"\ude00"), "no event of a chat"),
        (delta("content", r"a\ud800") + "data: [DONE]\n\n", "no event of a chat: '.*ud800"),
        ('data: {"usage": {"prompt_tokens": null, "completion_tokens": 1}}\n\n', "no event of"),
        ('data: {"usage": {"prompt_tokens": "8", "completion_tokens": 1}}\n\n', "no event of"),
        ("data: nothing\n\n", "no event of a chat: 'nothing'"),
        ("data: [1]\n\n", "no event of a chat"),
        ('data: {"choices": [1]}\n\n', "no event of a chat"),
        ('data: {"usage": {"tokens": 1}}\n\n', "no event of a chat"),
        ('data: {"error": {"message": "on fire"}}\n\n', "on fire"),
        ('{"choices": [{"message": {"content": "It is."}}]}', "no events"),
        ("data: [DONE]\n\n", "no events"),
    ],
)
def test_what_is_no_stream_of_events_is_told(content: str, words: str) -> None:
    with pytest.raises(ServerError, match=words):
        said(content)
