"""`pagoda plan --html`: a page is written, also of what does not fit."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from checkpoints import CASES, write_checkpoint
from pagoda.calculator.page import plan_page
from pagoda.cli.main import run

Output = pytest.CaptureFixture[str]


def opening(path: Path) -> dict[str, Any]:
    """What the page at `path` opens with."""
    found = re.search(r'id="opening">(.*?)</script>', path.read_text("utf-8"))
    assert found is not None
    values: dict[str, Any] = json.loads(found[1])
    return values


def test_the_page_has_the_plan_that_is_printed(tmp_path: Path, capsys: Output) -> None:
    path = tmp_path / "plan.html"
    asked = ["plan", "Qwen/Qwen3-8B", "--gpu", "l40s", "--users", "4", "--json"]
    assert run([*asked, "--html", str(path)]) == 0
    printed = json.loads(capsys.readouterr().out)
    shown = opening(path)
    assert printed.items() <= shown["plan"].items()
    assert shown["choice"]["gpu"] == "L40S"
    assert run(asked) == 0
    assert json.loads(capsys.readouterr().out) == printed


def test_what_does_not_fit_is_written_and_refused(tmp_path: Path, capsys: Output) -> None:
    path = tmp_path / "plan.html"
    assert run(["plan", "Llama-3.1-70B-Instruct", "--gpu", "L4", "--html", str(path)]) == 1
    [making, line] = capsys.readouterr().err.splitlines()
    assert making == f"writing the page {path}"
    shown = opening(path)
    assert shown["plan"] is None
    assert "does not fit on 1 × L4" in shown["refusal"]
    assert shown["refusal"] in line


def test_a_directory_of_ones_own(tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path / "mine", CASES["qwen3"], tokenizer=False)
    path = tmp_path / "plan.html"
    told = ["plan", str(directory), "--memory", "1GiB", "--html", str(path)]
    assert run(told) == 0
    choice = opening(path)["choice"]
    assert (choice["model"], choice["gpu"]) == ("mine", "1 GiB")


def test_a_directory_whose_name_is_no_text(tmp_path: Path) -> None:
    name = os.fsdecode(b"caf\xe9")
    directory = write_checkpoint(tmp_path / name, CASES["qwen3"], tokenizer=False)
    path = tmp_path / "plan.html"
    assert run(["plan", str(directory), "--memory", "1GiB", "--json", "--html", str(path)]) == 0
    assert path.read_text("utf-8").endswith("</html>\n")


def test_without_a_model_the_page_is_written_alone(tmp_path: Path, capsys: Output) -> None:
    path = tmp_path / "plan.html"
    assert run(["plan", "--html", str(path)]) == 0
    assert path.read_text("utf-8") == plan_page()
    assert capsys.readouterr().out == ""


def test_without_model_and_page_there_is_nothing_to_do(capsys: Output) -> None:
    assert run(["plan"]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("pagoda: error: model=None: ")


def test_a_path_that_cannot_be_written_is_one_line(tmp_path: Path, capsys: Output) -> None:
    path = tmp_path / "none" / "plan.html"
    assert run(["plan", "no such model", "--html", str(path)]) == 2  # before anything is read
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"pagoda: error: --html='{path}'"[:60])
    assert line.endswith("cannot be written: No such file or directory")
    assert run(["plan", "no such model", "--html", str(tmp_path / "plan.html")]) == 2
    assert list(tmp_path.iterdir()) == []
