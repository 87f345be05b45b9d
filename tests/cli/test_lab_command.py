"""`pagoda lab` over a tiny random model: what it takes, writes and refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from checkpoints import Case, write_checkpoint
from pagoda.cli.lab import LAB_FLAGS, LabOptions
from pagoda.cli.main import run
from pagoda.lab.lab import Lab
from pagoda.lab.sizes import QUICK, Sizes

SMALL = [
    *("--windows", "2", "--window", "48", "--chunk", "16", "--passkey-trials", "0"),
    *("--threads", "1", "--device", "cpu"),
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Llama of one small layer, with heads that other tests have kernels for."""
    folder = tmp_path_factory.mktemp("lab")
    return str(write_checkpoint(folder, Case("llama", {"num_hidden_layers": 1, "head_dim": 64})))


@pytest.fixture
def text(tmp_path: Path) -> str:
    path = tmp_path / "words.txt"
    path.write_text(" ".join(f"word {number}" for number in range(60)), "utf-8")
    return str(path)


def test_tables_lines_and_a_picture(
    model: str, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines, picture = tmp_path / "lab.jsonl", tmp_path / "lab.svg"
    asked = ["--kv-cache-dtype", "fp8,int8_per_token_head", "--kv-cache-dtype", "fp8_e5m2"]
    written = ["--json", str(lines), "--svg", str(picture)]
    assert run(["lab", model, "--text", text, *asked, *written, *SMALL]) == 0
    objects = [json.loads(line) for line in lines.read_text("utf-8").splitlines()]
    names = [each["kv_cache_dtype"] for each in objects]
    assert names == ["auto", "bfloat16", "fp8", "int8_per_token_head", "fp8_e5m2"]
    assert all(each["tokens"] == 2 * 47 for each in objects)
    assert all(each["text"] == "words.txt" for each in objects)
    assert picture.read_text("utf-8").count("int8_per_token_head") == 4  # two points, two names
    captured = capsys.readouterr()
    assert "…" not in captured.out.replace("…+", "").replace("…-", "")  # nothing is cut
    assert [line.split()[0] for line in captured.out.splitlines() if line[:4] == "fp8 "] == [
        "fp8",
        "fp8",
    ]
    assert "auto, chunks of 4" in captured.out
    assert captured.err.splitlines()[-1] == "fp8_e5m2: speed"


def test_a_long_name_of_a_method_is_folded_and_its_figures_stay_whole(
    model: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "levels4-float16-offset-hadamard/levels4-float16-offset"
    assert run(["lab", model, "--text", text, "--kv-cache-dtype", name, *SMALL]) == 0
    told = capsys.readouterr().out
    figures = [line.split() for line in told.splitlines() if line.startswith("levels4")]
    assert [len(each) for each in figures] == [10, 3]
    assert "…" not in told.replace("…+", "").replace("…-", "")
    headings = told.replace("\n", " ")
    assert all(word in headings for word in ("perplexity", "change", "of draws", "agrees"))


def test_an_interrupt_keeps_what_is_done(
    model: str,
    text: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("pagoda.lab.lab.measure_speed", stop)
    lines = tmp_path / "lab.jsonl"
    arguments = [model, "--text", text, "--kv-cache-dtype", "fp8", "--json", str(lines), *SMALL]
    assert run(["lab", *arguments]) == 130
    assert [json.loads(line)["windows"] for line in lines.read_text().splitlines()] == [2, 2, 2]
    assert "2 windows of 48 tokens" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--kv-cache-dtype", "int9"], "--kv-cache-dtype='int9': one of auto, float32, bfloat16, "),
        (["--windows", "1"], "--windows=1: must be a whole number of at least 2"),
        (["--windows", "some"], "--windows='some': must be a whole number"),
        (["--chunk", "4k"], "--chunk=4000: at most 256"),
        (["--text", "no/such/file"], "--text='no/such/file': No such file"),
        (["--json", "no/such/folder/x"], "--json='no/such/folder/x': cannot be written: No such"),
        (["--svg", "."], "--svg='.': cannot be written: Is a directory"),
        (["--model", "other"], "--model='other': no/such/model is named as well"),
    ],
)
def test_a_bad_flag_is_refused_before_the_model_is_loaded(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["lab", "no/such/model", "--device", "cpu", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    [line] = captured.err.splitlines()
    assert line.startswith(f"pagoda: error: {message}")


@pytest.mark.parametrize(
    ("flag", "value", "message"),
    [
        ("--windows", "20", "has 469 tokens, and 20 windows of 48 take 960"),
        ("--window", "256", "--window=256: the model takes 256 tokens"),
        (
            "--kv-cache-dtype-skip-layers",
            "7",
            "--kv-cache-dtype-skip-layers=7: the model has layers",
        ),
    ],
)
def test_what_does_not_suit_the_model_is_refused_before_anything_is_read(
    model: str,
    text: str,
    flag: str,
    value: str,
    message: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Lab, "run", lambda *_: pytest.fail("something was read"))
    assert run(["lab", model, "--text", text, *SMALL, flag, value]) == 2
    assert message in capsys.readouterr().err.splitlines()[-1]


def test_quick_is_another_default_and_what_is_said_goes_before_it() -> None:
    assert LabOptions().sizes == Sizes()
    assert LabOptions(quick=True).sizes == QUICK
    mixed = LabOptions(quick=True, window=256, passkey_trials=1, passkey_lengths=(512,)).sizes
    assert (mixed.windows, mixed.window, mixed.passkeys) == (QUICK.windows, 256, (512,))


def test_help_tells_the_sizes_that_are_meant() -> None:
    told = {flag.name: flag.help for flag in LAB_FLAGS.flags}
    assert f"{Sizes().windows} if not given" in told["windows"]
    assert f"{QUICK.windows} windows of {QUICK.window}" in told["quick"]
