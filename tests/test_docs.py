"""What the documents state as fact is so."""

from __future__ import annotations

import re
import runpy
import shlex
from pathlib import Path

import pytest

import pagoda
from pagoda.cli.main import run
from test_floors import ALL_BELOW, ROOMS

ROOT = Path(__file__).parent.parent
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])


def test_the_table_of_rooms_is_the_one_that_is_enforced() -> None:
    rows = re.findall(
        r"^\| (\d) \| \*?`(\w+)`\*? \|[^|]*\| ([^|]*) \|$",
        (ROOT / "docs" / "rooms.md").read_text(),
        re.MULTILINE,
    )
    stated = {room: (int(floor), named(uses)) for floor, room, uses in rows}
    assert stated == {name: (room.floor, set(room.uses)) for name, room in ROOMS.items()}


def named(uses: str) -> set[str]:
    found = set(re.findall(r"`([\w.]+)`", uses))
    return found | {ALL_BELOW} if ALL_BELOW in uses else found


def test_written_tables_are_what_the_code_says() -> None:
    writer = runpy.run_path(str(ROOT / "tools" / "write_tables.py"))
    for (document, name), table in writer["TABLES"].items():
        text = (ROOT / "docs" / document).read_text("utf-8")
        assert writer["with_table"](text, name, table()) == text, "make docs writes it anew"


def test_every_public_field_says_what_it_means() -> None:
    page = (ROOT / "docs" / "python.md").read_text("utf-8")
    rows = re.findall(r"^\| `(\w+)` \|.*\|([^|]*)\|$", page, re.MULTILINE)
    assert len(rows) > 50
    assert [name for name, meaning in rows if not meaning.strip()] == []


def test_planned_rooms_are_empty_and_the_others_are_not() -> None:
    text = (ROOT / "docs" / "rooms.md").read_text()
    planned = set(re.findall(r"\*`(\w+)`\*", text))
    for room in ROOMS:
        package = ROOT / "src" / "pagoda" / room
        assert (package.is_dir() or package.with_suffix(".py").is_file()) == (room not in planned)


def test_the_readme_says_how_long_the_code_is() -> None:
    said = re.search(
        r"about ([\d,]+) lines for the cache, about ([\d,]+) in all, no file longer\s+than (\d+)",
        (ROOT / "README.md").read_text(),
    )
    assert said is not None
    cache, everything, longest = (int(number.replace(",", "")) for number in said.groups())
    source = ROOT / "src" / "pagoda"
    lengths = {path: len(path.read_text().splitlines()) for path in source.rglob("*.py")}
    of_the_cache = sum(lengths[path] for path in lengths if path.is_relative_to(source / "cache"))
    assert of_the_cache == pytest.approx(cache, rel=0.15)
    assert sum(lengths.values()) == pytest.approx(everything, rel=0.15)
    assert max(lengths.values()) <= longest


def test_the_changelog_begins_with_this_version() -> None:
    found = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert found is not None
    assert found[1] == pagoda.__version__


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_and_paths_lead_somewhere(document: Path) -> None:
    text = document.read_text()
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", text):
        assert (document.parent / target).exists(), target
    for path in re.findall(r"`((?:src|tests|docs|examples|benchmarks)/[\w/.-]+)`", text):
        assert (ROOT / path).exists(), path


@pytest.mark.model
def test_a_body_that_the_documents_send_is_said_to_be_json() -> None:
    lines = [line for document in DOCUMENTS for line in document.read_text("utf-8").splitlines()]
    sent = [line for line in lines if re.search(r"\bcurl\b.* -d '\{", line)]
    assert len(sent) > 2
    assert [line for line in sent if "-H 'Content-Type: application/json'" not in line] == []


def test_the_examples_of_the_readme_run(capsys: pytest.CaptureFixture[str]) -> None:
    examples = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert len(examples) == 4
    names: dict[str, object] = {}
    for example in examples:
        exec(compile(example, "README.md", "exec"), names)
    out = capsys.readouterr().out
    assert "Paris" in out
    assert re.search(r"[1-9]\d* of \d+ prompt tokens came from the cache", out)
    assert "96 tokens need not be computed again" in out


def test_the_readme_plans_as_pasted(capsys: pytest.CaptureFixture[str]) -> None:
    lines = re.findall(r"^    pagoda (plan .*)$", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert len(lines) == 2
    for line in lines:
        assert run(shlex.split(line)) == 0
        assert "KV cache" in capsys.readouterr().out


def test_make_help_names_every_command_of_the_documents() -> None:
    makefile = (ROOT / "Makefile").read_text()
    commands = set(re.findall(r"^([a-z]+):.*## ", makefile, re.MULTILINE))
    for document in DOCUMENTS:
        used = re.findall(
            r"(?:^    |`)make ([a-z]+(?: [a-z]+)*)", document.read_text(), re.MULTILINE
        )
        assert {name for names in used for name in names.split()} <= commands, document.name
