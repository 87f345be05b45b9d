"""`pagoda bench` over a tiny random model: what it runs and prints, not how fast."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import pagoda
from checkpoints import Case, build_model, write_checkpoint
from gguf_files import GGML, QUANTISABLE, write_gguf
from pagoda.cli.bench import BENCH_FLAGS, _with_kv_cache
from pagoda.cli.main import run
from pagoda.cli.plan_model import find_facts
from pagoda.engine.devices import machine
from pagoda.engine.devices.cpu_backend import CPUModel, SizedCPU
from pagoda.engine.options import EngineOptions
from pagoda.planning.request import PlanRequest
from pagoda.planning.subject import read_subject
from pagoda.roofline import WORKLOADS, MachineLimits

FIELDS = {
    "engine", "version", "workload", "seed", "prompt_tokens", "output_tokens", "cached_tokens",
    "seconds", "best_seconds", "ready_seconds", "time_to_first_token", "time_per_output_token",
    "roofline_seconds", "share", "read_bandwidth", "product_rate", "weight_read_bytes",
    "quantization", "activation_dtype", "kv_cache_dtype", "num_blocks", "block_size",
    "max_num_batched_tokens", "max_num_seqs",
}  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Llama of one small layer that has room for all workloads but the long ones."""
    config = {"max_position_embeddings": 1200, "num_hidden_layers": 1}
    return str(write_checkpoint(tmp_path_factory.mktemp("bench"), Case("llama", config)))


@pytest.fixture
def known_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine need not be measured, which takes a second before a run and after it."""
    monkeypatch.setattr(machine, "measure_limits", lambda *_, **__: MachineLimits(1e10, 1e11))


def bench(model: str, *arguments: str) -> int:
    flags = ["--model", model, "--max-model-len", "1200", "--kv-cache-memory-bytes", "32MiB"]
    return run(["bench", *flags, "--threads", "1", *arguments])


def test_json_is_one_object_a_workload(
    model: str, capsys: pytest.CaptureFixture[str], known_limits: None
) -> None:
    arguments = ["--workload", "shared", "single", "--repeat", "2", "--seed", "7", "--json"]
    assert bench(model, *arguments) == 0
    captured = capsys.readouterr()
    shared, single = map(json.loads, captured.out.splitlines())
    assert set(shared) == set(single) == FIELDS
    for row in (shared, single):
        assert (row["engine"], row["version"]) == ("pagoda", pagoda.__version__)
        assert row["seed"] == 7
        assert len(row["seconds"]) == 2
        assert row["best_seconds"] == min(row["seconds"])
        assert (row["read_bandwidth"], row["product_rate"]) == (1e10, 1e11)
    assert (shared["workload"], single["workload"]) == ("shared", "single")
    assert (shared["prompt_tokens"], shared["output_tokens"]) == (32 * 1088, 32 * 32)
    assert (single["prompt_tokens"], single["output_tokens"]) == (128, 128)
    # All but the first request find the prefix; the second run finds nothing of the first.
    assert shared["cached_tokens"] == 31 * 1024
    assert single["cached_tokens"] == 0
    assert "shared, run 2 of 2: " in captured.err


def test_the_machine_is_measured_before_the_cache_takes_its_memory(
    model: str, monkeypatch: pytest.MonkeyPatch, known_limits: None
) -> None:
    calls: list[str] = []

    def note(stage: type, name: str) -> None:
        call = getattr(stage, name)

        def noted(*given: object) -> object:
            calls.append(name)
            return call(*given)

        monkeypatch.setattr(stage, name, noted)

    note(CPUModel, "measure_limits")
    note(SizedCPU, "start")
    assert bench(model, "single", "--repeat", "1", "--json") == 0
    assert calls == ["measure_limits", "start", "measure_limits"]


def test_people_get_a_table_first(
    model: str, capsys: pytest.CaptureFixture[str], known_limits: None
) -> None:
    assert bench(model, "single", "--repeat", "1") == 0
    *shown, last = capsys.readouterr().out.splitlines()
    assert json.loads(last)["workload"] == "single"
    (line,) = [line for line in shown if line.strip().startswith("single")]
    assert len(line.split()) == 9
    assert line.rstrip().endswith("%")
    assert "…" not in "".join(shown)
    assert shown[-1].startswith("memory reads ")


def test_the_floor_is_that_of_the_file_as_it_is_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    slow = MachineLimits(read_bandwidth=1e5, product_rate=1e30)  # reading alone decides
    monkeypatch.setattr(machine, "measure_limits", lambda *_, **__: slow)
    case = Case("llama", {"max_position_embeddings": 1200, "num_hidden_layers": 1, **QUANTISABLE})
    path = write_gguf(tmp_path / "stored.gguf", build_model(case), quantisation=GGML.Q8_0)
    rows = []
    for flags in ((), ("--quantization", "none")):
        assert bench(str(path), "single", "--repeat", "1", *flags) == 0
        *shown, last = capsys.readouterr().out.splitlines()
        rows.append(json.loads(last))
        assert shown[-2].startswith("weights: ")
        assert ("Q8_0 as stored" in shown[-2]) == (not flags)
    stored, plain = rows
    assert (stored["quantization"], plain["quantization"]) == ("Q8_0", None)
    for row, quantization in ((stored, None), (plain, "none")):
        request = PlanRequest(engine="pagoda", quantization=quantization)
        planned = read_subject(find_facts(str(path)), request, None)
        assert row["weight_read_bytes"] == planned.weights.read_bytes(1)
    saved = plain["weight_read_bytes"] - stored["weight_read_bytes"]
    assert saved > 0
    least = 128 * saved / slow.read_bandwidth  # 128 steps
    between = plain["roofline_seconds"] - stored["roofline_seconds"]
    assert between == pytest.approx(least, abs=0.002)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--workload", "double"], "--workload='double': one of single, mixed, shared, long, "),
        (["single", "double"], "--workload='double': one of"),
        (["--repeat", "0"], "--repeat=0: must be a whole number of at least 1"),
        (["--repeat", "few"], "--repeat='few': must be a whole number"),
        (["--max-model-len", "900"], "--max-model-len=900: the workload shared needs at least"),
        (["--seed", "-1"], "--seed=-1: must be a whole number of at least 0"),
    ],
)
def test_a_bad_flag_is_refused_before_the_model_is_loaded(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["bench", "--model", "no/such/model", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    [line] = captured.err.splitlines()
    assert line.startswith(f"pagoda: error: {message}")


def test_a_workload_that_is_too_long_is_refused_before_anything_runs(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench(model, "single", "long") == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines()[-1] == (
        "pagoda: error: --max-model-len=1200: the workload long needs at least 4160"
    )
    assert "run 1" not in captured.err


def test_the_cache_takes_2_gib_unless_its_size_is_chosen() -> None:
    assert _with_kv_cache(EngineOptions()).kv_cache_memory_bytes == 2 * 2**30
    for chosen in (
        EngineOptions(kv_cache_memory_bytes=5), EngineOptions(gpu_memory_utilization=0.5),
    ):  # fmt: skip
        assert _with_kv_cache(chosen) == chosen


def test_help_names_the_workloads() -> None:
    (text,) = [flag.help for flag in BENCH_FLAGS.flags if flag.name == "workload"]
    assert all(name in text for name in WORKLOADS)
