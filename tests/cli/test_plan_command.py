"""`pagoda plan` as people type it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pagoda
from checkpoints import CASES, build_model, write_checkpoint
from gguf_files import write_gguf
from pagoda.cli.main import run
from pagoda.planning.tables import model_rows
from planning.start_ups import start_up, write_files

Output = pytest.CaptureFixture[str]


def answer(capsys: Output, *arguments: str) -> dict[str, Any]:
    assert run(["plan", *arguments, "--json"]) == 0
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    return told


def text(capsys: Output, *arguments: str) -> str:
    assert run(["plan", *arguments]) == 0
    return capsys.readouterr().out


def test_a_plan_tells_where_the_memory_goes_and_what_fits(capsys: Output) -> None:
    told = text(capsys, "Llama-3.1-8B-Instruct", "--gpu", "H100", "--price", "2.5")
    assert told.startswith("meta-llama/Llama-3.1-8B-Instruct on 1 × H100, vllm 0.32: 8.03 B")
    [bar] = [line for line in told.splitlines() if line.startswith("[W")]
    assert len(bar) == 78
    assert bar.count("K") > bar.count("W") > bar.count("R")
    for words in (
        "W weights", "14.96", "K KV cache", "32 full attention", "131,072 bytes", "16.00 GiB",
        "values in this range", "GPU KV cache size:", "tokens/s a user", "a user and hour",
        "fp8 cache", "× users", "--kv-cache-dtype fp8", "--tensor-parallel-size",
    ):  # fmt: skip
        assert words in told
    assert all(len(line) <= 100 for line in told.splitlines() if not line.startswith("  "))


def test_the_cache_s_memory_makes_it_exact(capsys: Output) -> None:
    told = text(capsys, "Llama-3.1-8B-Instruct", "--kv-cache-memory-bytes", "20GiB")
    assert "vllm 0.32 will print:\n  GPU KV cache size: 163,840 tokens, Maximum concurrency" in told
    assert "values in this range" not in told


def test_without_a_machine_bytes_are_told(capsys: Output) -> None:
    told = text(capsys, "google/gemma-3-27b-it")
    assert "Name --gpu, --memory or --kv-cache-memory-bytes" in told
    assert "once windows are full" in told
    assert "6 of" not in told  # groups of 9 and of 8
    assert "4 of 9 × sliding window, blocks of 16 tokens" in told
    assert "the last 1,024 tokens in 52 layers; every token in 10 layers" in told


def test_what_a_token_adds_is_told_of_mixed_models(capsys: Output) -> None:
    told = text(capsys, "Qwen3-Next-80B-A3B-Instruct", "--gpu", "H200", "-tp", "2", "--users", "1")
    assert "bytes on a rank beside the states" in told
    assert "in all, with 1 user\n" in "\n".join(line.rstrip() for line in told.splitlines())


def test_what_stays_of_a_request_is_told(capsys: Output) -> None:
    asked = ["SmolLM2-135M-Instruct", "--engine", "pagoda", "--kv-cache-memory-bytes", "1GiB"]
    kept = [*asked, "--kv-retention", "streaming"]
    told = text(capsys, *kept, "--max-model-len", "1000000")
    assert "the first 4 and the last 1,020 tokens in 30 layers" in told
    assert "for 1,000,000 tokens on a rank" in told
    assert "kept" not in text(capsys, *asked)
    sizes = [answer(capsys, *kept, *more) for more in ([], ["--request-kv-retention"])]
    assert sizes[0]["kv_retention"] == "streaming"
    assert sizes[1]["sequence_bytes"] - sizes[0]["sequence_bytes"] == sizes[0]["block_bytes"]


def test_states_alone_hold_any_length(capsys: Output) -> None:
    told = text(capsys, "Mamba-Codestral-7B-v0.1", "--gpu", "H100", "--max-model-len", "8192")
    assert "any length for 1 user" in told


def test_json_holds_everything(capsys: Output) -> None:
    told = answer(capsys, "Qwen3-30B-A3B", "--gpu", "L40S", "--tensor-parallel-size", "2")
    assert told["model"] == "Qwen/Qwen3-30B-A3B"
    assert told["low"]["num_blocks"] < told["high"]["num_blocks"]
    assert told["num_devices"] == 2
    assert told["speed"]["total_tokens_per_s"] > told["speed"]["tokens_per_s"]
    assert {"name", "flags", "users_low", "gain"} <= set(told["alternatives"][0])


def test_tiers_are_told_with_what_they_would_have_to_bring(capsys: Output) -> None:
    asked = ["Llama-3.1-8B-Instruct", "--context", "4096", "--tier", "nvme", "--tier", "host-pcie5"]
    told = text(capsys, *asked, "--gpu", "H100")
    assert "a token moves 131,072 bytes" in told
    assert "from 21,728 tokens on" in told
    assert "--prefill-rate" in told
    assert "the same memory" not in told
    measured = text(capsys, *asked, "--gpu", "GB10", "--prefill-rate", "2000")
    assert "nothing: the same memory" in measured
    assert "a larger pool does" in measured
    assert "at least, and shorter" not in measured
    [nvme, host] = answer(capsys, *asked, "--gpu", "GB10")["tiers"]
    assert (nvme["name"], nvme["shortest_tokens"]) == ("nvme", 16)
    assert host["buys_nothing"]
    assert "a tier" not in text(capsys, "Llama-3.1-8B-Instruct", "--gpu", "H100")


@pytest.mark.parametrize("kind", ["directory", "config", "gguf"])
def test_a_model_of_one_s_own(tmp_path: Path, capsys: Output, kind: str) -> None:
    case = CASES["qwen3"]
    directory = write_checkpoint(tmp_path / "model", case, tokenizer=False)
    paths = {"directory": directory, "config": directory / "config.json"}
    if kind == "gguf":
        paths["gguf"] = tmp_path / "model.gguf"
        write_gguf(paths["gguf"], build_model(case))
    flags = ["--engine", "pagoda", "--kv-cache-memory-bytes", "1MB", "--dtype", "float32"]
    told = answer(capsys, str(paths[kind]), *flags)
    assert told["block_bytes"] == 16 * 4 * 2 * (32 + 32) * 4
    assert told["high"]["num_blocks"] == 1_000_000 // told["block_bytes"]
    counted = sum(weight.numel() for weight in build_model(case).parameters())
    assert told["parameters"] == pytest.approx(counted, rel=0.01)


def test_a_config_may_come_through_a_pipe(capsys: Output) -> None:
    row = model_rows()["Qwen/Qwen3-8B"]
    reading, writing = os.pipe()
    os.write(writing, json.dumps(row["config"]).encode())
    os.close(writing)
    try:
        told = answer(capsys, f"/dev/fd/{reading}", "--gpu", "H100")
    finally:
        os.close(reading)
    assert told["layer_kinds"] == {"full attention": 36}


def test_validate_counts(tmp_path: Path, capsys: Output) -> None:
    few = [start_up(name) for name in ("o003", "o094", "o100", "o136")]
    files = write_files(tmp_path, few)
    assert run(["plan", "validate", *files, "--json"]) == 1  # there is a miss
    told = json.loads(capsys.readouterr().out)
    assert (told["cases"], told["hits"]) == (4, 2)
    assert [miss["id"] for miss in told["misses"]] == ["o136"]
    assert [silent["id"] for silent in told["unknown"]] == ["o094"]
    assert run(["plan", "validate", *files]) == 1
    shown = capsys.readouterr().out
    assert "2 of 4 start-ups predicted within the log's rounding" in shown
    assert "1 missed, and of 1 the post leaves out what decides" in shown
    assert shown.count("MISS") == 1
    assert "o094: could not be known: the figures fit a cache in fp8" in shown


def test_validate_is_content_where_nothing_misses(tmp_path: Path, capsys: Output) -> None:
    silent = [start_up("o003"), start_up("o094")]
    assert "1 of 2 start-ups" in text(capsys, "validate", *write_files(tmp_path, silent))


REFUSED: dict[str, tuple[list[str], str]] = {
    "no name": ([""], "model='': must be a directory, a file, a name or a hub id"),
    "no such model": (["nothing"], "model='nothing': there is no such file"),
    "nearly a name": (["Llama-3.1-8B-Instruckt"], "(the nearest are meta-llama/Llama-3.1-8B"),
    "no such gpu": (["Qwen3-8B", "--gpu", "H100X"], "--gpu='H100X': is not in the table"),
    "in its place": (["Qwen3-8B", "--gpu", "H100X"], "; or give --memory"),
    "a word": (["Qwen3-8B", "--users", "many"], "--users='many': must be a whole number"),
    "not a size": (["Qwen3-8B", "--memory", "80XB"], "--memory='80XB': a size like"),
    "a short form": (["Qwen3-8B", "--tp", "2"], "No such option: --tp (did you mean -tp?)"),
    "half a flag": (["Qwen3-8B", "--max-model", "2"], "(did you mean --max-model-len?)"),
    "a length": (["Qwen3-8B", "--max-model-len", "8q"], "must be a whole number, as 8192, 32k"),
    "heads": (["Qwen3-8B", "--tensor-parallel-size", "5"], "--tensor-parallel-size=5: must divide"),
    "two models": (["Qwen3-8B", "Qwen3-4B"], "files=['Qwen3-4B']: name one model alone"),
    "one file": (["validate", "observed.jsonl"], "files=['observed.jsonl']: two files"),
    "no files": (["validate", "a.jsonl", "b.json"], "file='a.jsonl': No such file"),
    "heads of a gpu": (
        ["falcon-7b", "--engine", "pagoda", "--gpu", "H200"],
        "num_key_value_heads=1: at least a sixteenth of the 71 heads on a GPU",
    ),
    "a draft": (["Qwen3-8B", "--speculative-model", "none"], "model='none': there is no such file"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_is_one_line_and_never_a_number(name: str, capsys: Output) -> None:
    arguments, words = REFUSED[name]
    assert run(["plan", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    [line] = captured.err.splitlines()
    assert line.startswith(f"pagoda: error: {words}") or words in line


def test_what_does_not_fit_is_an_answer_of_its_own(capsys: Output) -> None:
    """Exit code 1, as 2 says that the flags cannot be."""
    assert run(["plan", "Llama-3.1-70B-Instruct", "--gpu", "T4"]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    [line] = captured.err.splitlines()
    assert line.startswith("pagoda: error: model='meta-llama/Llama-3.1-70B")


@pytest.mark.parametrize(
    ("flags", "exit_code", "told"),
    [
        (["--gpu", "V100", "--kv-cache-dtype", "fp8"], 1, "not start: a cache in fp8 is ref"),
        (["--gpu", "H100", "-tp", "8", "--kv-cache-dtype", "nvfp4"], 1, "start: a cache in nvfp4"),
        (["--gpu", "V100", "--kv-cache-dtype", "fp8", "--engine", "vllm@0.8"], 0, ""),
    ],
)
def test_what_the_engine_certainly_refuses_is_no_success(
    flags: list[str], exit_code: int, told: str, capsys: Output
) -> None:
    assert run(["plan", "Qwen3-8B", *flags]) == exit_code
    assert told in capsys.readouterr().out


def test_short_forms_and_lengths_as_vllm_takes_them(capsys: Output) -> None:
    flags = ["-tp", "2", "-pp", "2", "--max-model-len", "8K", "--context", "8k"]
    told = answer(capsys, "Qwen3-8B", "--gpu", "L4", *flags)
    assert told["num_devices"] == 4
    assert (told["max_model_len"], told["context"]) == (8192, 8000)


def test_without_graphs_nothing_is_set_aside_for_them(capsys: Output) -> None:
    asked = ["Qwen3-8B", "--gpu", "L4", "--max-model-len", "8K"]
    usual, eager = answer(capsys, *asked), answer(capsys, *asked, "--enforce-eager")
    graphs = {part["name"]: part["high"] for part in eager["memory"]}["CUDA graphs"]
    assert graphs == 0
    assert eager["low"]["num_blocks"] > usual["low"]["num_blocks"]


def test_states_may_be_kept_for_every_block(capsys: Output) -> None:
    asked = ["Qwen3-Next-80B-A3B-Instruct", "--kv-cache-memory-bytes", "20GiB"]
    blocks = {}
    for mode in ("none", "align", "all"):
        flags = ["--max-model-len", "64K", "--mamba-cache-mode", mode]
        groups = answer(capsys, *asked, *flags)["groups"]
        states = [group for group in groups if group["kind"] == "recurrent state"]
        blocks[mode] = [group["blocks_per_request"] for group in states]
    assert {*blocks["none"]} == {1}
    assert {*blocks["align"]} == {2}
    assert min(blocks["all"]) > 2


def test_what_is_known_is_listed(capsys: Output) -> None:
    told = answer(capsys, "--list")
    assert len(told["models"]) == len(model_rows())
    assert {"name", "parameters", "max_model_len"} <= set(told["models"][0])
    assert {device["name"] for device in told["accelerators"]} >= {"H100", "T4", "MI300X"}
    shown = text(capsys, "--list")
    assert "Qwen/Qwen3-8B" in shown
    assert "H200" in shown


@pytest.mark.parametrize(
    "change", [lambda text: "{", lambda text: "[]", lambda text: text.replace("hidden_size", "x")]
)
def test_a_broken_config_is_one_line(
    tmp_path: Path, capsys: Output, change: Callable[[str], str]
) -> None:
    path = tmp_path / "config.json"
    fields = {"model_type": "llama", "num_hidden_layers": 2, "num_attention_heads": 4}
    path.write_text(change(json.dumps(fields | {"hidden_size": 64, "vocab_size": 9})))
    assert run(["plan", str(path)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert len(captured.err.splitlines()) == 1


def test_a_plan_loads_nothing_heavy() -> None:
    source = str(Path(pagoda.__file__).parent.parent)
    script = (
        f"import sys; sys.path.insert(0, {source!r})\n"
        "from pagoda.cli.main import run\n"
        "assert run(['plan', 'Qwen3-8B', '--gpu', 'H100']) == 0\n"
        "heavy = {'torch', 'numba', 'httpx', 'transformers', 'huggingface_hub', 'fastapi'}\n"
        "assert not (heavy | {'gguf'}) & set(sys.modules), heavy & set(sys.modules)"
    )
    result = subprocess.run([sys.executable, "-I", "-c", script], capture_output=True, timeout=120,
                            check=False)  # fmt: skip
    assert result.returncode == 0, result.stderr


def test_lines_of_an_end_at_which_the_engine_refuses_are_not_told(capsys: Output) -> None:
    asked = ["plan", "Llama-3.1-8B-Instruct", "--gpu", "L4", "--max-model-len", "16384", "--json"]
    assert run(asked) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["low"]["concurrency"] < 1 <= told["high"]["concurrency"]
    assert told["low"]["lines"] == []
    assert run(asked[:-1]) == 0
    printed = capsys.readouterr().out
    assert "will print values up to these, or refuse to start" in printed
    assert printed.count("KV cache size") == 1
