"""`pagoda explain` reads the whole of what it is given, or says that it does not."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from pagoda.cli.main import run

Output = pytest.CaptureFixture[str]
NOWHERE = ("--url", "http://127.0.0.1:1")
MOST = 100


@pytest.fixture(autouse=True)
def limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pagoda.cli.explain.MOST_CHARACTERS", MOST)


def refusal(capsys: Output, given: str) -> str:
    assert run(["explain", given, *NOWHERE]) == 2
    return capsys.readouterr().err


@pytest.mark.parametrize("source", ["stdin", "file", "pipe"])
def test_more_than_is_read_is_refused_and_never_cut(
    source: str, tmp_path: Path, piped: Callable[[bytes], None], capsys: Output
) -> None:
    def told_of(num_characters: int) -> str:
        data = "é".encode() * num_characters
        if source == "stdin":
            piped(data)
            return refusal(capsys, "-")
        if source == "file":
            (tmp_path / "prompt").write_bytes(data)
            return refusal(capsys, str(tmp_path / "prompt"))
        reading, writing = os.pipe()
        os.write(writing, data)
        os.close(writing)
        try:
            return refusal(capsys, f"/dev/fd/{reading}")
        finally:
            os.close(reading)

    assert "does not answer" in told_of(MOST)
    assert f"has more than {MOST} characters, the most that are read" in told_of(MOST + 1)


def test_what_cannot_be_read_is_refused(
    tmp_path: Path, piped: Callable[[bytes], None], capsys: Output
) -> None:
    binary = tmp_path / "binary"
    binary.write_bytes(b"\x89PNG\xff")
    assert "must be UTF-8 text" in refusal(capsys, str(binary))
    assert "cannot be read: Is a directory" in refusal(capsys, str(tmp_path))
    assert "is not there" in refusal(capsys, str(tmp_path / "body.json"))
    (tmp_path / "empty").write_bytes(b" \n")
    assert "is empty" in refusal(capsys, str(tmp_path / "empty"))
    piped(b"\xff")
    assert "must be utf-8 text" in refusal(capsys, "-")


def test_a_body_that_is_nested_too_deeply_is_refused_and_not_taken_for_a_prompt(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Output
) -> None:
    monkeypatch.setattr("pagoda.cli.explain.MOST_CHARACTERS", 10**6)
    (tmp_path / "body.json").write_text('{"messages": ' + "[" * 100_000)
    assert "is JSON that is nested too deeply" in refusal(capsys, str(tmp_path / "body.json"))


@pytest.mark.parametrize("given", ["", "x" * 1025])
def test_what_cannot_be_an_id_is_not_asked_for(given: str, capsys: Output) -> None:
    assert "an id of 1 to 1,024 characters, a file, or - for stdin" in refusal(capsys, given)
