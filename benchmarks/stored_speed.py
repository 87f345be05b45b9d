"""Weights as they are stored beside llama.cpp on the same files, in turn, and the ratios.

    python benchmarks/stored_speed.py FILE.gguf ... --peers-dir DIR [--repeat 5] [--tokens 128]
        [--only "as stored" llama.cpp ...] [--openvino MODEL ...] [--json FILE]

For each file llama.cpp, on as many threads and with its repacked forms, which are its defaults, and
this engine: as stored, de-quantised, and as stored with activations of 8 bits where it can. One
stream (128 + 128 tokens), 8 streams, and 512 tokens of a prompt; the best of rounds in turn, with
the workers of benchmarks/peers.py. DIR holds llama.cpp (benchmarks/stored_files.py makes files with
it). MODEL: the same model as optimum exports it, with weights of 8 or 4 bits, run by DIR/openvino.

The share is that of the file's own roofline: its bytes, read once a step, or the bfloat16 products
of a prompt, at the limits that are measured before each round; the median of the rounds.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import fields
from pathlib import Path
from statistics import median
from typing import Any

import torch
from peers import Cell, Worker, WorkerError, started, take_turns, tell

from pagoda.engine.devices.machine import measure_limits
from pagoda.engine.options import EngineOptions
from pagoda.models.load import FORMATS, load_spec
from pagoda.models.locate import locate
from pagoda.models.registry import weight_names
from pagoda.models.weight_parts import DecoderParts
from pagoda.roofline import MachineLimits, Work, WorkItem, roofline_seconds
from pagoda.sizing.held_weights import hold

sys.path.append(str(Path(__file__).parent / "workers"))
import llama_library

LLAMA = "llama.cpp"
OWN = {
    "as stored": {},
    "de-quantised": {"quantization": "none"},
    "8-bit activations": {"activation_dtype": "int8"},
}
"""This engine's workers, and the options of each."""
NUM_STREAMS = 8
_LIMITS = (
    ("read_bandwidths", "memory reads", 1e9, "GB/s"),
    ("product_rates", "matrix products", 1e12, "TFLOP/s"),
)
"""Keys of a row, and how they are told."""
_STREAM_TOKENS = 128
_PROMPT_TOKENS = 512


def main() -> None:
    args = arguments()
    try:
        library = llama_library.find(args.peers_dir)
    except llama_library.LlamaError as error:
        sys.exit(str(error))
    rows: list[dict[str, Any]] = []
    for path in args.files:
        with ExitStack() as running:
            contenders = workers(path, library, args)
            found = [start(running, name, worker) for name, worker in contenders]
            compared = compare([each for each in found if each is not None], args)
        rows += [row(path, cell, limits) for cell, limits in compared]
    names = list(dict.fromkeys(name for each in rows for name in each["best_seconds"]))
    print(markdown(rows, names))
    print()
    for key, name, scale, unit in _LIMITS:
        measured = [limit / scale for each in rows for limit in each[key]]
        print(f"{name}: {min(measured):.2f} to {max(measured):.2f} {unit}")
    if args.json:
        args.json.write_text("".join(json.dumps(each) + "\n" for each in rows))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    known = [LLAMA, *own_contenders()]
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--peers-dir", type=Path, required=True)
    parser.add_argument("--only", nargs="+", default=known, choices=known)
    parser.add_argument("--openvino", nargs="+", default=[], type=Path)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=_STREAM_TOKENS, help="in, and out, a stream")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if args.repeat < 1 or not 2 <= args.tokens <= _PROMPT_TOKENS:
        parser.error(f"--repeat must be at least 1, --tokens 2 to {_PROMPT_TOKENS}")
    for path in args.files:
        if not path.is_file():
            parser.error(f"there is no file {path}")
    return args


def own_contenders() -> list[str]:
    """Those whose options this version has."""
    known = {option.name for option in fields(EngineOptions)}
    return [name for name, options in OWN.items() if known.issuperset(options)]


def workers(
    path: Path, library: Path, args: argparse.Namespace
) -> Iterator[tuple[str, AbstractContextManager[Worker]]]:
    """What is compared on a file, not started yet."""
    for name in args.only:
        if name == LLAMA:
            yield name, started("llamacpp", sys.executable, str(path), str(library), name=name)
        else:
            options = json.dumps(OWN[name])
            yield name, started("pagoda", sys.executable, str(path), options, name=name)
    for model in args.openvino:
        interpreter, name = args.peers_dir / "openvino/bin/python", f"OpenVINO, {model.name}"
        yield name, started("openvino", str(interpreter), str(model), name=name)


def start(running: ExitStack, name: str, worker: AbstractContextManager[Worker]) -> Worker | None:
    """The worker, which ends with `running`; None where it fails."""
    try:
        ready = running.enter_context(worker)
    except (WorkerError, OSError) as error:
        tell(f"{name}: {error}")
        return None
    tell(f"{name} {ready.version} was ready after {ready.ready_seconds:.1f} s")
    return ready


def works(num_tokens: int) -> dict[str, Work]:
    """What is timed, with streams of so many tokens in and as many out."""
    source = random.Random(0)

    def item(num_prompt: int, num_output: int) -> WorkItem:
        return WorkItem(tuple(source.randrange(100, 48_000) for _ in range(num_prompt)), num_output)

    return {
        "one stream": [item(num_tokens, num_tokens)],
        f"{NUM_STREAMS} streams": [item(num_tokens, num_tokens) for _ in range(NUM_STREAMS)],
        f"{_PROMPT_TOKENS} of a prompt": [item(_PROMPT_TOKENS, 1)],
    }


def compare(
    running: list[Worker], args: argparse.Namespace
) -> list[tuple[Cell, list[MachineLimits]]]:
    """Every work, in rounds, with the machine's limits, measured before each round."""
    compared = []
    for name, work in works(args.tokens).items():
        cell, limits = Cell(name, 0, work), []
        for number in range(1, args.repeat + 1):
            limits.append(measure_limits(torch.bfloat16))
            take_turns(running, cell, f"round {number} of {args.repeat}")
        compared.append((cell, limits))
    return compared


def row(path: Path, cell: Cell, limits: Sequence[MachineLimits]) -> dict[str, Any]:
    """What everybody made of a work on a file, and the least that the file's bytes allow."""
    files = locate(str(path))
    spec, form = load_spec(files), FORMATS[files.kind]
    parts = DecoderParts.of(spec, weight_names(spec.architecture, files.kind, form.types(files)))
    held = hold(parts, "bfloat16", form.types(files), keeps_stored=True)
    return {
        "file": path.stem,
        "work": cell.workload,
        "best_seconds": {name: cell.best(name) for name in cell.seconds},
        "seconds": cell.seconds,
        "roofline_seconds": [
            roofline_seconds(spec, "bfloat16", held.step_bytes, cell.work, each) for each in limits
        ],
        "read_bandwidths": [each.read_bandwidth for each in limits],
        "product_rates": [each.product_rate for each in limits],
    }


def markdown(rows: Sequence[dict[str, Any]], names: Sequence[str]) -> str:
    """Seconds, the best of all rounds; then what each takes for a second of llama.cpp's, and the
    shares of the roofline."""
    others = [name for name in names if name != LLAMA]
    own = [name for name in others if name in OWN]
    headings = ["file", "work", *names, *(f"{name} ÷ {LLAMA}" for name in others)]
    headings += [f"share, {name}" for name in own]
    lines = [headings, ["---"] * len(headings)]
    for each in rows:
        best = each["best_seconds"]
        seconds = [f"{best[name]:.2f}" if name in best else "–" for name in names]
        ratios = [
            f"{best[name] / best[LLAMA]:.2f}" if {name, LLAMA} <= best.keys() else "–"
            for name in others
        ]
        shares = [share(each, name) for name in own]
        lines.append([each["file"], each["work"], *seconds, *ratios, *shares])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def share(row: dict[str, Any], name: str) -> str:
    """Of the roofline, the median of the rounds: a machine's limits change from one to the next."""
    pairs = zip(row["roofline_seconds"], row["seconds"].get(name, ()), strict=False)
    found = [least / seconds for least, seconds in pairs]
    return f"{median(found):.0%}" if found else "–"


if __name__ == "__main__":
    main()
