"""The comparison with other engines, with a small program in their place."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from contextlib import suppress
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import psutil
import pytest

from pagoda.roofline import MachineLimits, WorkItem
from processes import becomes_stopped, ends

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
sys.path.append(str(BENCHMARKS))

FAKE = """
import sys
from worker_loop import serve

class Fake:
    def __init__(self, model, version="7"):
        print("loading", model)
        self.version = version
        self.resets = 0

    def reset(self):
        self.resets += 1

    def run(self, work):
        print("noise")
        if any(0 in ids for ids, _ in work):
            sys.exit("no token 0 here")
        return 100 * self.resets + sum(count for _, count in work)

serve(Fake)
"""

STOPPED = """
import sys, time
from pathlib import Path
import peers

peers.WORKERS = Path(sys.argv[1])
with peers.started("fake", sys.executable, "some/model") as worker:
    print(worker._process.pid, flush=True)
    time.sleep(60)
"""


@pytest.fixture(scope="module")
def peers() -> ModuleType:
    spec = spec_from_file_location("peers", BENCHMARKS / "peers.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules["peers"] = module  # where its dataclasses look their names up
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def workers(peers: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker of an engine that is called fake."""
    shutil.copy(BENCHMARKS / "workers" / "worker_loop.py", tmp_path)
    (tmp_path / "run_fake.py").write_text(FAKE)
    monkeypatch.setattr(peers, "WORKERS", tmp_path)


@pytest.mark.usefixtures("workers")
def test_a_worker_takes_its_turns_and_is_stopped_in_between(peers: ModuleType) -> None:
    with peers.started("fake", sys.executable, "some/model") as worker:
        process = psutil.Process(worker._process.pid)
        assert worker.version == "7"
        assert worker.ready_seconds > 0
        assert becomes_stopped(process)
        # The cache is emptied before every turn.
        assert worker.time("[[[1, 2], 3], [[4], 5]]")["output_tokens"] == 100 + 8
        answer = worker.time("[[[1], 1]]")
        assert answer["output_tokens"] == 200 + 1
        assert answer["seconds"] >= 0
        assert becomes_stopped(process)
    assert not process.is_running()


@pytest.mark.usefixtures("workers")
def test_a_stopped_worker_ends_with_a_comparison_that_is_killed(tmp_path: Path) -> None:
    comparison = subprocess.Popen(
        [sys.executable, "-c", STOPPED, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        text=True,
    )
    worker = psutil.Process(int(comparison.stdout.readline()))
    assert becomes_stopped(worker)
    comparison.kill()
    comparison.wait()
    try:
        assert ends(worker)
    finally:
        with suppress(psutil.NoSuchProcess):
            worker.kill()


@pytest.mark.usefixtures("workers")
def test_an_engine_may_have_several_workers(peers: ModuleType) -> None:
    with peers.started("fake", sys.executable, "some/model", "70", name="with an option") as worker:
        assert worker.engine == "with an option"
        assert worker.version == "70"


@pytest.mark.usefixtures("workers")
def test_an_engine_that_fails_is_left_out(
    peers: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    with peers.started("fake", sys.executable, "some/model") as worker:
        running = [worker]
        cell = peers.Cell("single", 0, [WorkItem((0,), 1)])
        peers.take_turns(running, cell, "round 1 of 1")
    assert running == []
    assert cell.seconds == {}
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "single, seed 0: fake failed"
    assert lines[-1] == "no token 0 here"


def test_an_engine_that_is_not_there_is_named(peers: ModuleType, tmp_path: Path) -> None:
    assert peers.missing_part("vllm", tmp_path) == tmp_path / "vllm/bin/python"
    assert peers.missing_part("pagoda", tmp_path) == tmp_path / "smollm2"
    (tmp_path / "smollm2").mkdir()
    assert peers.missing_part("pagoda", tmp_path) is None


def test_every_engine_has_a_worker(peers: ModuleType) -> None:
    scripts = {path.stem for path in peers.WORKERS.glob("run_*.py")}
    others = {"run_llamacpp"}  # of `stored_speed.py`
    assert scripts == {f"run_{engine}" for engine in peers.INSTALLATIONS} | others


def test_the_table_is_markdown(peers: ModuleType) -> None:
    seconds = {"pagoda": [2.0, 1.5], "vllm": [3.0, 2.0], "openvino": [1.25]}
    work = [WorkItem((1, 2), 3)]
    both = peers.Cell("single", 0, work, seconds, roofline_seconds=0.75)
    alone = peers.Cell("long", 1, work, {"pagoda": [4.0]}, roofline_seconds=2.0)
    assert peers.markdown([both, alone], list(seconds)).splitlines() == [
        "| workload | seed | pagoda | vllm | openvino | best peer | pagoda ÷ best peer | roofline "
        "| share |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
        "| single | 0 | 1.50 | 2.00 | 1.25 | openvino | 1.20 | 0.75 | 50% |",
        "| long | 1 | 4.00 | – | – | – | – | 2.00 | 50% |",
    ]


@pytest.mark.usefixtures("workers")
def test_a_row_holds_what_was_measured(peers: ModuleType) -> None:
    cell = peers.Cell(
        "single", 4, [WorkItem((1, 2), 3)], {"fake": [2.0, 1.5]}, roofline_seconds=0.75
    )
    with peers.started("fake", sys.executable, "some/model") as worker:
        (row,) = peers.rows([cell], [worker], MachineLimits(45e9, 1e12))
    assert json.loads(json.dumps(row)) == {
        "engine": "fake",
        "version": "7",
        "workload": "single",
        "seed": 4,
        "prompt_tokens": 2,
        "output_tokens": 3,
        "seconds": [2.0, 1.5],
        "best_seconds": 1.5,
        "ready_seconds": row["ready_seconds"],
        "roofline_seconds": 0.75,
        "share": 0.5,
        "read_bandwidth": 45_000_000_000,
        "product_rate": 1_000_000_000_000,
    }
