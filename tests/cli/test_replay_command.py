"""`pagoda replay`: what it prints, and what it refuses."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from pagoda.cli.main import run
from replay.traces import write_mooncake


@pytest.fixture
def trace(tmp_path: Path) -> str:
    return str(write_mooncake(tmp_path / "day.jsonl"))


def test_one_setting_is_one_object(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--num-blocks", "20", "--block-size", "512", "--eviction-policy", "lru"]
    assert run(["replay", trace, "--cache-only", *flags, "--json"]) == 0
    captured = capsys.readouterr()
    told = json.loads(captured.out)
    assert (told["requests"], told["policy"], told["num_blocks"]) == (60, "lru", 20)
    assert 0 < told["hit_rate"] <= told["optimal_hit_rate"] <= told["unbounded_hit_rate"] < 1
    missed = told["missed_tokens_by_cause"]
    assert sum(missed.values()) == told["prompt_tokens"] - told["hit_tokens"]
    assert missed["never_seen"] > missed["evicted"] > 0
    assert told["seconds"] >= 0
    assert captured.err == ""


def test_several_settings_are_a_table(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--num-blocks", "20,40", "--eviction-policy", "lru,slru", "--block-size", "256,512"]
    assert run(["replay", trace, "--cache-only", *flags]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert sum(row[:1] in (["lru"], ["slru"]) for row in rows) == 8
    assert run(["replay", trace, "--cache-only", *flags, "--json", "--no-optimum"]) == 0
    answers = json.loads(capsys.readouterr().out)["answers"]
    assert len(answers) == 8
    assert answers[0]["optimal_hit_rate"] is None


def test_broken_rows_are_told(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    with Path(trace).open("a") as file:
        file.write("oops\n" * 12)
    assert run(["replay", trace, "--cache-only", "--num-blocks", "20", "--json"]) == 0
    captured = capsys.readouterr()
    told = json.loads(captured.out)
    assert (told["requests"], told["broken_rows"]) == (60, 12)
    lines = captured.err.splitlines()
    assert lines[0] == "12 rows of day.jsonl could not be read and were left out:"
    assert lines[1] == "line 61: row='oops': must be JSON"
    assert lines[-1] == "… and 2 more"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--num-blocks", "0"], "--num-blocks=0: must be a whole number of at least 1"),
        (["--num-blocks", "x"], "--num-blocks='x': must be a whole number"),
        (
            ["--num-blocks", "9,99999999999999999999"],
            "--num-blocks=99999999999999999999: at most 3",
        ),
        ([], "--num-blocks: how many blocks the pool has"),
        (["--num-blocks", "9", "--block-size", "500"], "--block-size=500: must divide 512, "),
        (
            ["--num-blocks", "9", "--eviction-policy", "mru"],
            "--eviction-policy='mru': one of arc, density, ",
        ),
        (["--num-blocks", "9", "--format", "csv"], "--format='csv': one of mooncake"),
        (
            ["--num-blocks", "9", "--svg", "/no/such/folder.svg"],
            "--svg='/no/such/folder.svg': cannot",
        ),
    ],
)
def test_what_cannot_be_is_refused(
    trace: str, flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["replay", trace, "--cache-only", *flags]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith(f"pagoda: error: {message}")
    assert (captured.out, captured.err.count("\n")) == ("", 1)


def test_a_pool_that_no_request_fits_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "day.jsonl"
    path.write_text('{"timestamp": 0, "input_length": 1500, "output_length": 1, "hash_ids": []}\n')
    assert run(["replay", str(path), "--cache-only", "--num-blocks", "2"]) == 2
    assert "--num-blocks=2: none of 1 requests fits" in capsys.readouterr().err


def test_a_file_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["replay", "nowhere.jsonl", "--cache-only", "--num-blocks", "2"]) == 2
    assert "trace='nowhere.jsonl': cannot be read: No such file" in capsys.readouterr().err


def test_with_the_scheduler(trace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "replay.svg"
    flags = ["--num-blocks", "20,40", "--max-num-batched-tokens", "1024,4096"]
    flags += ["--step-cost", "step=0.01,token=0.0001", "--max-num-seqs", "8"]
    assert run(["replay", trace, *flags, "--json", "--svg", str(picture)]) == 0
    answers = json.loads(capsys.readouterr().out)["answers"]
    assert [each["num_blocks"] for each in answers] == [20, 20, 40, 40]
    for each in answers:
        assert each["requests"] == 60
        assert each["hit_rate"] <= each["unbounded_hit_rate"]
        assert each["time_to_first_token_s"]["p50"] <= each["time_to_first_token_s"]["p99"]
        assert each["block_seconds"][""] > 0
    drawn = picture.read_text("utf-8")
    for budget in ("1,024", "4,096"):
        assert f">density, {budget} tokens a step, " in drawn
    assert "seats" not in drawn
    assert "knowing all, " in drawn
    assert run(["replay", trace, *flags]) == 0
    out = capsys.readouterr().out
    assert "first token" in out
    assert "…" not in out


def test_each_number_of_seats_has_its_curve(
    trace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = tmp_path / "replay.svg"
    flags = ["--num-blocks", "20,40", "--max-num-seqs", "1,8", "--json", "--svg", str(picture)]
    assert run(["replay", trace, *flags]) == 0
    answers = json.loads(capsys.readouterr().out)["answers"]
    drawn = picture.read_text("utf-8")
    for seats in (1, 8):
        rate = next(
            each["hit_rate"]
            for each in answers
            if (each["num_blocks"], each["max_num_seqs"]) == (40, seats)
        )
        label = f"density, {seats} seats, {rate:.1%}"
        assert f">{label}<" in drawn
        assert drawn.count(f"density, {seats} seats: ") == 2  # a dot for each size


def test_a_trace_whose_name_is_no_text_is_drawn(
    trace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    odd = Path(trace).rename(tmp_path / os.fsdecode(b"caf\xe9.jsonl"))
    picture = tmp_path / "replay.svg"
    flags = ["--cache-only", "--num-blocks", "20", "--json", "--svg", str(picture)]
    assert run(["replay", str(odd), *flags]) == 0
    assert ">caf?.jsonl<" in picture.read_text("utf-8")


def test_on_a_named_gpu(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--num-blocks", "40", "--gpu", "H100", "--model", "Llama-3.1-8B-Instruct", "--json"]
    spans = []
    for more in ([], ["--tensor-parallel-size", "2"]):
        assert run(["replay", trace, *flags, *more]) == 0
        spans.append(json.loads(capsys.readouterr().out)["time_to_first_token_s"]["p50"])
    assert 0 < spans[1] < spans[0] < 1


def test_formats_of_the_cache_in_the_same_memory(
    trace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    formats = ["auto", "int8_per_token_head", "int4_per_token_head"]
    flags = ["--kv-cache-memory-bytes", "2GiB,4GiB", "--model", "Llama-3.1-8B-Instruct"]
    flags += ["--kv-cache-dtype", ",".join(formats)]
    assert run(["replay", trace, "--cache-only", *flags, "--json"]) == 0
    answers = json.loads(capsys.readouterr().out)["answers"]
    assert [each["kv_cache_dtype"] for each in answers] == [each for each in formats for _ in "24"]
    # 2 sides of 32 layers of 8 heads of 128 numbers; a float32 beside the codes of a vector.
    vectors = 2 * 32 * 8 * 512
    sizes = {"auto": 2 * 128, "int8_per_token_head": 128 + 4, "int4_per_token_head": 64 + 4}
    for each, gib in zip(answers, (2, 4) * 3, strict=True):
        assert each["num_blocks"] == gib * 2**30 // (vectors * sizes[each["kv_cache_dtype"]])
    assert run(["replay", trace, "--cache-only", *flags]) == 0
    out = capsys.readouterr().out
    assert "density, int4_per_token_head" in out
    assert "…" not in out


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["2GiB"], "--model: whose keys and values"),
        (["2GiB", "--num-blocks", "9"], "--num-blocks=(9,): says how many blocks there are"),
        (["9", "--model", "Llama-3.1-8B-Instruct"], "--kv-cache-memory-bytes=9: must hold a block"),
        (["many", "--model", "Llama-3.1-8B-Instruct"], "--kv-cache-memory-bytes='many'"),
        (
            ["2GiB", "--model", "Llama-3.1-8B-Instruct", "--kv-cache-dtype", "x"],
            "--kv-cache-dtype='x': one of",
        ),
    ],
)
def test_memories_that_cannot_be(
    trace: str, flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["replay", trace, "--cache-only", "--kv-cache-memory-bytes", *flags]) == 2
    assert capsys.readouterr().err.startswith(f"pagoda: error: {message}")


def test_tenants_are_told_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text(
        "".join(json.dumps({"prompt": "x" * 200, "tenant": each}) + "\n" for each in "aabb")
    )
    assert run(["replay", str(path), "--num-blocks", "40"]) == 0
    assert "block-" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--step-cost", "walk=1"], "--step-cost='walk=1': seconds as step="),
        (["--gpu", "H100"], "--model: what runs there"),
        (["--model", "smollm2"], "--gpu: where the model runs"),
        (
            ["--gpu", "H1000", "--model", "Qwen3-8B"],
            "--gpu='H1000': is not in the table: the nearest are H100, H100-NVL, H100-PCIE; "
            "or give --step-cost",
        ),
        (["--gpu", "H100", "--model", "Qwen3-8B", "--step-cost", "step=1"], "--step-cost='step=1'"),
        (["--max-num-batched-tokens", "0"], "--max-num-batched-tokens=0: must be at least 1"),
        (["--scheduling-policy", "lifo"], "--scheduling-policy='lifo': one of fcfs"),
        (["--full-blocks-only"], "--full-blocks-only: is for --cache-only"),
    ],
)
def test_schedulers_that_cannot_be_are_refused(
    trace: str, flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["replay", trace, "--num-blocks", "20", *flags]) == 2
    assert capsys.readouterr().err.startswith(f"pagoda: error: {message}")
