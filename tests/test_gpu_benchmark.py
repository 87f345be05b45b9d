"""The benchmark for GPUs: all of it in Triton's interpreter, with shapes that take seconds."""

from __future__ import annotations

import argparse
import gc
import io
import json
import runpy
import subprocess
import sys
import warnings
from contextlib import redirect_stdout
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
PROGRAM = str(BENCHMARKS / "gpu.py")
sys.path.append(str(BENCHMARKS))

from gpu_parts.report import markdown  # noqa: E402
from gpu_parts.results import Results  # noqa: E402
from gpu_parts.workload import NAMES  # noqa: E402

JOBS = (
    "limits", "kernels:decode", "engine:tiny-qwen3", "kernels:accuracy", "promises",
    "kernels:prefill", "kernels:streaming",
)  # fmt: skip
KERNELS = {
    "decode attention", "prefill attention", "norm", "add and norm", "activation",
    "rotary and cache write",
}  # fmt: skip


@pytest.fixture(scope="module")
def gpu() -> ModuleType:
    spec = spec_from_file_location("gpu_benchmark", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def tiny(gpu: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], str]:
    """The results of a whole tiny run, and what it printed.

    In this process, whose interpreter of Triton's does not repeat itself and which has loaded what
    a program of its own would load in seconds.
    """
    from transformers import LlamaForCausalLM, Qwen3ForCausalLM  # noqa: F401

    gc.collect()
    gc.freeze()  # each engine looks for garbage, also in large libraries
    path = tmp_path_factory.mktemp("gpu") / "results.json"
    arguments = [PROGRAM, "--device", "cpu", "--tiny", "--json", str(path)]
    printed = io.StringIO()
    with (
        pytest.MonkeyPatch.context() as patch,
        redirect_stdout(printed),
        warnings.catch_warnings(action="ignore"),  # a peer's, that it is not compiled
    ):
        patch.setenv("TRITON_INTERPRET", "1")
        patch.setattr(sys, "argv", arguments)
        assert gpu.main() == 0
    return json.loads(path.read_text()), printed.getvalue()


def rows(results: dict[str, Any], job: str) -> list[dict[str, Any]]:
    return results["jobs"][job]["rows"]


@pytest.mark.model
def test_a_tiny_run_measures_every_part_and_nothing_fails(tiny: tuple[dict[str, Any], str]) -> None:
    results, _ = tiny
    assert list(results["jobs"]) == list(JOBS)
    assert [each["failures"] for each in results["jobs"].values()] == [[]] * len(JOBS)
    assert all(each["rows"] and each["seconds"] is not None for each in results["jobs"].values())
    assert results["limits"]["copy_bandwidth"] > 0
    assert results["limits"]["product_rate"] > 0
    assert results["about"]["dtype"] == "float32"


@pytest.mark.model
def test_kernels_and_peers_are_right_and_compared(tiny: tuple[dict[str, Any], str]) -> None:
    results, _ = tiny
    for job in ("kernels:decode", "kernels:prefill"):
        assert {row["engine"] for row in rows(results, job)} >= {"pagoda", "SDPA", "FlexAttention"}
        assert max(row["relative_error"] for row in rows(results, job)) < 1e-5
    decode = {row["kernel"] for row in rows(results, "kernels:decode")}
    assert decode == {
        "decode attention", "decode attention, fp8_e4m3", "decode attention, int8_per_token_head",
        "decode attention, latents",
    }  # fmt: skip
    prefill = {row["kernel"] for row in rows(results, "kernels:prefill")}
    assert prefill == {"prefill attention", "prefill attention, latents", "attention of a hit"}
    assert {row["kernel"] for row in rows(results, "kernels:streaming")} == {
        "add and norm", "rotary and cache write", "activation", "block copy"
    }  # fmt: skip
    accuracy = rows(results, "kernels:accuracy")
    assert {row["kernel"] for row in accuracy} == KERNELS
    assert max(row["largest_relative_error"] for row in accuracy) < 1e-5


@pytest.mark.model
def test_the_engine_runs_all_work_beside_transformers(tiny: tuple[dict[str, Any], str]) -> None:
    results, _ = tiny
    found = rows(results, "engine:tiny-qwen3")
    assert {row["kind"] for row in found} == {"start", "stream", "batch", "workload"}
    worked = {(row["engine"], row["workload"]) for row in found if row["kind"] == "workload"}
    for name in ("pagoda", "transformers continuous batching", "transformers generate"):
        assert {workload for each, workload in worked if each == name} == set(NAMES)
    assert [row["batch"] for row in found if row["kind"] == "batch"] == [1, 2]


@pytest.mark.model
def test_answers_are_the_same_however_they_were_come_by(tiny: tuple[dict[str, Any], str]) -> None:
    results, _ = tiny
    promises = rows(results, "promises")
    assert len(promises) == 2 * 4
    assert {row["way"] for row in promises} == {"again", "hit", "alone", "eager"}
    assert [row["different_tokens"] for row in promises] == [0] * 8
    hits = {row["way"]: row["prefix_cache_hits"] for row in promises}
    assert hits["hit"] > 0


@pytest.mark.model
def test_tables_are_printed(tiny: tuple[dict[str, Any], str]) -> None:
    results, printed = tiny
    titles = [line[4:] for line in printed.splitlines() if line.startswith("### ")]
    assert titles[:7] == [
        "Kernels", "Against float64", "One stream", "Batches", "Workloads", "The same answers",
        "Beside transformers",
    ]  # fmt: skip
    assert printed.strip() == markdown(results).strip()


@pytest.mark.model
def test_a_process_of_its_own_prints_the_tables_of_an_earlier_run(
    tiny: tuple[dict[str, Any], str], tmp_path: Path
) -> None:
    results, _ = tiny
    path = tmp_path / "results.json"
    path.write_text(json.dumps(results))
    command = [sys.executable, PROGRAM, "--report", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=True)
    assert done.stdout.strip() == markdown(results).strip()
    assert done.stderr == ""


def test_without_a_gpu_it_says_so_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As its file is run, but in this process, which has loaded what it imports: what a process of
    its own imports before that sentence, and a GPU hidden from it, are not seen here."""
    path = tmp_path / "results.json"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", [PROGRAM, "--json", str(path)])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(PROGRAM, run_name="__main__")
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith("There is no GPU to measure on: PyTorch ")
    assert len(said.splitlines()) == 1
    assert not path.exists()


def test_jobs_that_break_or_hang_take_no_other_with_them(
    gpu: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "results.json"
    args = argparse.Namespace(
        json=path, quick=False, tiny=True, device="cpu", models=["tiny-qwen3"], isolate=True
    )
    outcomes = {"limits": 0, "kernels:decode": -11, "promises": None, "kernels:prefill": 0}
    begun = []

    def fake(command: list[str], timeout: float) -> int:
        name = command[command.index("--job") + 1]
        begun.append(name)
        job = Results.open(path).job(name)
        job.add("something", figure=1)
        if (code := outcomes[name]) is None:
            raise subprocess.TimeoutExpired(command, timeout)
        return code

    Results.new(path, {})
    monkeypatch.setattr(gpu, "run_guarded", fake)
    gpu.run_apart(args, list(outcomes))
    assert begun == list(outcomes)
    jobs = json.loads(path.read_text())["jobs"]
    assert all(each["rows"] == [{"figure": 1}] for each in jobs.values())
    errors = {name: [f["error"] for f in each["failures"]] for name, each in jobs.items()}
    assert errors == {
        "limits": [],
        "kernels:decode": ["its process ended with -11"],
        "promises": ["ended after 2400 s"],
        "kernels:prefill": [],
    }


def test_a_quick_run_stops_when_its_time_is_over(
    gpu: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "results.json"
    args = argparse.Namespace(json=path, quick=True, tiny=True, device="cpu", models=["tiny-llama"])
    clock = iter([0.0, 10.0, 300.0, 460.0])
    given = []

    def fake(command: list[str], timeout: float) -> int:
        given.append(timeout)
        return 0

    Results.new(path, {})
    monkeypatch.setattr(gpu, "run_guarded", fake)
    monkeypatch.setattr(gpu.time, "monotonic", lambda: next(clock))
    gpu.run_apart(args, ["limits", "promises", "kernels:prefill"])
    assert given == [200, 150]
    left_out = json.loads(path.read_text())["jobs"]["kernels:prefill"]["left_out"]
    assert left_out == [{"what": "kernels:prefill", "reason": "--quick has had its time"}]


def test_the_first_model_comes_before_what_tells_less(gpu: ModuleType) -> None:
    args = argparse.Namespace(models=["llama-3-8b", "qwen3-14b"], only=["kernels", "engine"])
    assert gpu.job_names(args) == [
        "limits", "kernels:decode", "engine:llama-3-8b", "kernels:accuracy", "kernels:prefill",
        "kernels:streaming", "engine:qwen3-14b",
    ]  # fmt: skip


def test_what_raises_is_noted_and_the_rest_goes_on(tmp_path: Path) -> None:
    results = Results.new(tmp_path / "results.json", {})
    with results.timed("a job") as job:
        job.add("one", value=1)
        with job.attempt("a part"):
            raise ValueError("is broken\nin many ways")
        job.add("two", value=2)
        raise KeyError("the end")
    content = json.loads((tmp_path / "results.json").read_text())["jobs"]["a job"]
    assert content["rows"] == [{"value": 1}, {"value": 2}]
    assert [(each["what"], each["error"]) for each in content["failures"]] == [
        ("a part", "ValueError: is broken"),
        ("a job", "KeyError: 'the end'"),
    ]
    assert "test_gpu_benchmark.py" in content["failures"][0]["trace"]
