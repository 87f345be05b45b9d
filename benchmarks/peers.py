"""Pagoda beside other engines: the same work, in turn, and the ratios.

    python benchmarks/peers.py --peers-dir DIR [--engines pagoda openvino vllm transformers]
        [--workload single mixed ...] [--seed 0 1] [--repeat 5] [--json FILE]

DIR holds a virtual environment for each engine (`vllm`, `openvino`, and `base` for transformers)
and the model in both formats (`smollm2`, `smollm2-openvino`). Each engine stays loaded in a process
of its own and is stopped while another has its turn: round after round, so that a disturbance of
the machine hits all alike. The best of all rounds counts. Prefix caches are emptied before each.

Prints a Markdown table, then one JSON line for each engine, workload and seed (or into FILE).
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import torch
from guard import guarded, send

from pagoda.engine.devices.machine import measure_limits
from pagoda.models.load import load_spec
from pagoda.models.locate import locate
from pagoda.models.names import HUGGING_FACE_NAMES
from pagoda.models.weight_parts import DecoderParts
from pagoda.roofline import WORKLOADS, MachineLimits, Work, draw, roofline_seconds
from pagoda.sizing.held_weights import hold

WORKERS = Path(__file__).parent / "workers"
_LOG_LINES = 15
_LEAVING_SECONDS = 30


@dataclass(frozen=True)
class Installation:
    """Where an engine is; relative to the directory of the peers."""

    interpreter: str
    model: str


INSTALLATIONS = {
    "pagoda": Installation(sys.executable, "smollm2"),
    "openvino": Installation("openvino/bin/python", "smollm2-openvino"),
    "vllm": Installation("vllm/bin/python", "smollm2"),
    "transformers": Installation("base/bin/python", "smollm2"),
}


class WorkerError(Exception):
    """An engine failed; the message holds the end of what it printed."""


class Worker:
    """One engine in a process of its own, stopped but for its turns."""

    def __init__(self, engine: str, process: subprocess.Popen[str], log: IO[str]) -> None:
        """Waits until the engine is ready. Raises `WorkerError`."""
        self.engine = engine
        self._process = process
        self._log = log
        ready = self._answer()
        self.version: str = ready["version"]
        self.ready_seconds: float = ready["ready_seconds"]
        self._signal(signal.SIGSTOP)

    def time(self, work: str) -> dict[str, Any]:
        """One turn: `seconds` and `output_tokens` of the work, a line of JSON."""
        self._signal(signal.SIGCONT)
        try:
            self._process.stdin.write(work + "\n")
            self._process.stdin.flush()
            return self._answer()
        except OSError:
            raise self._failed() from None
        finally:
            self._signal(signal.SIGSTOP)

    def _answer(self) -> dict[str, Any]:
        line = self._process.stdout.readline()
        if not line:
            raise self._failed()
        return json.loads(line)

    def _signal(self, number: signal.Signals) -> None:
        send(self._process, number)

    def _failed(self) -> WorkerError:
        self._log.seek(0)
        lines = self._log.read().splitlines()[-_LOG_LINES:]
        return WorkerError("\n".join([f"{self.engine} failed", *lines]))


@contextmanager
def started(
    engine: str, interpreter: str, model: str, *arguments: str, name: str | None = None
) -> Iterator[Worker]:
    """A worker, until the block ends, with arguments of its own. Raises `WorkerError`.

    `name`: what it is called, where an engine has several workers.
    """
    environment = dict(os.environ)
    if engine != "pagoda":
        environment.pop("PYTHONPATH", None)  # our modules are not for other interpreters
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            [interpreter, str(WORKERS / f"run_{engine}.py"), model, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env=environment,
            text=True,
            start_new_session=True,  # a group of its own, which can be stopped as a whole
        )
        try:
            # A stopped worker would outlive us for ever, and hold its memory.
            with guarded(process):
                yield Worker(name or engine, process, log)
        finally:
            end(process)


def end(process: subprocess.Popen[str]) -> None:
    """Let a worker leave by itself, since killed ones leave shared memory behind; then kill it."""
    send(process, signal.SIGCONT)
    with suppress(OSError):
        process.stdin.close()
    with suppress(subprocess.TimeoutExpired):
        process.wait(_LEAVING_SECONDS)
    send(process, signal.SIGKILL)
    process.wait()


@dataclass
class Cell:
    """One workload of one seed: what every engine made of it."""

    workload: str
    seed: int
    work: Work
    seconds: dict[str, list[float]] = field(default_factory=dict)
    """Each engine's seconds, one figure a round."""
    roofline_seconds: float = 0.0

    @property
    def prompt_tokens(self) -> int:
        return sum(len(item.prompt_token_ids) for item in self.work)

    @property
    def output_tokens(self) -> int:
        return sum(item.num_output_tokens for item in self.work)

    def best(self, engine: str) -> float:
        return min(self.seconds[engine])

    @property
    def best_peer(self) -> str | None:
        peers = [engine for engine in self.seconds if engine != "pagoda"]
        return min(peers, key=self.best, default=None)


def main() -> None:
    args = arguments()
    directory = args.peers_dir.resolve()
    with ExitStack() as running:
        found = (start(engine, directory, running) for engine in args.engines)
        workers = [worker for worker in found if worker is not None]
        if not workers:
            sys.exit("no engine is left to time")
        cells, limits = compare(workers, args, str(directory / "smollm2"))
    print(markdown(cells, [worker.engine for worker in workers]))
    print(f"\nmemory reads {limits.read_bandwidth / 1e9:.1f} GB/s, ", end="")
    print(f"matrix products {limits.product_rate / 1e12:.2f} TFLOP/s\n")
    lines = [json.dumps(row) + "\n" for row in rows(cells, workers, limits)]
    if args.json:
        args.json.write_text("".join(lines))
    else:
        sys.stdout.writelines(lines)


def start(engine: str, directory: Path, running: ExitStack) -> Worker | None:
    """The engine's worker, which ends with `running`; None if it is not there or fails."""
    if (missing := missing_part(engine, directory)) is not None:
        tell(f"{engine} is not installed: there is no {missing}")
        return None
    tell(f"{engine} is starting")
    place = INSTALLATIONS[engine]
    interpreter, model = directory / place.interpreter, directory / place.model
    try:
        worker = running.enter_context(started(engine, str(interpreter), str(model)))
    except WorkerError as error:
        tell(str(error))
        return None
    tell(f"{engine} {worker.version} was ready after {worker.ready_seconds:.1f} s")
    return worker


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    known = list(INSTALLATIONS)
    parser.add_argument("--peers-dir", type=Path, required=True)
    parser.add_argument("--engines", nargs="+", default=known, choices=known)
    parser.add_argument("--workload", nargs="+", default=list(WORKLOADS), choices=WORKLOADS)
    parser.add_argument("--seed", type=int, nargs="+", default=[0])
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if args.repeat < 1:
        parser.error("--repeat must be at least 1")
    return args


def missing_part(engine: str, directory: Path) -> Path | None:
    """What an engine lacks to be run."""
    installation = INSTALLATIONS[engine]
    parts = (directory / installation.interpreter, directory / installation.model)
    return next((part for part in parts if not part.exists()), None)


def compare(
    workers: Sequence[Worker], args: argparse.Namespace, model: str
) -> tuple[list[Cell], MachineLimits]:
    """Every workload of every seed, in rounds; a worker that fails has no further turn."""
    spec = load_spec(locate(model))
    limits = measure_limits(torch.bfloat16)
    works = {(name, seed): draw(name, seed) for seed in args.seed for name in args.workload}
    weight_bytes = hold(DecoderParts.of(spec, HUGGING_FACE_NAMES), "bfloat16").step_bytes
    cells = [Cell(name, seed, work) for (name, seed), work in works.items()]
    running = list(workers)
    for cell in cells:
        for number in range(1, args.repeat + 1):
            take_turns(running, cell, f"round {number} of {args.repeat}")
        limits = limits.best_of(measure_limits(torch.bfloat16))
    for cell in cells:
        cell.roofline_seconds = roofline_seconds(spec, "bfloat16", weight_bytes, cell.work, limits)
    return cells, limits


def take_turns(running: list[Worker], cell: Cell, round_name: str) -> None:
    """One run of each engine; one that fails is taken out of `running`."""
    line = json.dumps([[item.prompt_token_ids, item.num_output_tokens] for item in cell.work])
    for worker in list(running):
        try:
            answer = worker.time(line)
            if answer["output_tokens"] != cell.output_tokens:
                raise WorkerError(f"{worker.engine} made {answer['output_tokens']} tokens")
        except WorkerError as error:
            tell(f"{cell.workload}, seed {cell.seed}: {error}")
            running.remove(worker)
            continue
        seconds = answer["seconds"]
        cell.seconds.setdefault(worker.engine, []).append(seconds)
        where = f"{cell.workload}, seed {cell.seed}, {round_name}"
        tell(f"{where}: {worker.engine} {seconds:.2f} s")


def markdown(cells: Sequence[Cell], engines: Sequence[str]) -> str:
    """The table, as documents hold it: seconds, the best of all rounds."""
    headings = [
        "workload",
        "seed",
        *engines,
        "best peer",
        "pagoda ÷ best peer",
        "roofline",
        "share",
    ]
    lines = [headings, ["---"] * len(headings)]
    for cell in cells:
        peer, ratio, share = cell.best_peer, "–", "–"
        if "pagoda" in cell.seconds:
            share = f"{cell.roofline_seconds / cell.best('pagoda'):.0%}"
            if peer is not None:
                ratio = f"{cell.best('pagoda') / cell.best(peer):.2f}"
        best = [f"{cell.best(name):.2f}" if name in cell.seconds else "–" for name in engines]
        roofline = f"{cell.roofline_seconds:.2f}"
        lines.append([cell.workload, str(cell.seed), *best, peer or "–", ratio, roofline, share])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def rows(
    cells: Sequence[Cell], workers: Sequence[Worker], limits: MachineLimits
) -> Iterator[dict[str, Any]]:
    """One object for each engine and cell."""
    for cell in cells:
        for worker in workers:
            if worker.engine not in cell.seconds:
                continue
            best = cell.best(worker.engine)
            yield {
                "engine": worker.engine,
                "version": worker.version,
                "workload": cell.workload,
                "seed": cell.seed,
                "prompt_tokens": cell.prompt_tokens,
                "output_tokens": cell.output_tokens,
                "seconds": [round(seconds, 3) for seconds in cell.seconds[worker.engine]],
                "best_seconds": round(best, 3),
                "ready_seconds": round(worker.ready_seconds, 1),
                "roofline_seconds": round(cell.roofline_seconds, 3),
                "share": round(cell.roofline_seconds / best, 3),
                "read_bandwidth": round(limits.read_bandwidth),
                "product_rate": round(limits.product_rate),
            }


def tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
