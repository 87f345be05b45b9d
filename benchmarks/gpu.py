"""Everything there is to measure on a GPU: kernels, the engine and its promises, and the limits.

    python benchmarks/gpu.py [--quick] [--only kernels engine promises] [--models llama-3-8b …]
        [--json FILE]
    python benchmarks/gpu.py --report FILE

One NVIDIA or AMD GPU, PyTorch 2.11 and Triton 3.6 or newer; weights are random and made there, so
nothing is downloaded. First the limits: how fast memory is copied and matrices are multiplied, to
which everything else is compared; then kernels beside SDPA, FlexAttention and, where it is
installed, FlashInfer; the engine beside transformers; and whether answers stay the same.

Progress goes to stderr, Markdown tables to stdout. FILE is complete after every figure: what a run
that was ended had found, --report prints. Each job has a process of its own, so one that fails or
hangs takes no other with it. --quick takes less than 8 minutes on an H200. `--device cpu --tiny`
runs the same code in Triton's interpreter, to see that it works; its figures mean nothing.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import subprocess
import sys
import time
from pathlib import Path

from guard import run_guarded

PARTS = ("limits", "kernels", "engine", "promises")
_QUICK_SECONDS, _QUICK_JOB_SECONDS, _JOB_SECONDS = 450, 200, 2400
_MODELS = ("llama-3-8b", "qwen3-0.6b", "qwen3-14b")
_TINY_MODELS = ("tiny-qwen3", "tiny-llama")
_NO_GPU = 2


def main() -> int:
    args = arguments()
    if args.device == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"  # before triton is imported, by whatever it is
    if args.report is not None:
        return report(args.report)
    if args.device == "cuda" and (obstacle := missing_gpu()) is not None:
        print(f"There is no GPU to measure on: {obstacle}.", file=sys.stderr)
        return _NO_GPU
    if args.job is not None:
        return run_here(args, [args.job])
    start(args)
    run = run_here if args.tiny and not args.isolate else run_apart
    try:
        run(args, job_names(args))
    except KeyboardInterrupt:
        print("Stopped; this is what had been found.", file=sys.stderr)
    return report(args.json)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--models", nargs="+", choices=(*_MODELS, *_TINY_MODELS))
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path, default=Path("gpu_results.json"))
    parser.add_argument("--report", type=Path, help="print the tables of an earlier run")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="shapes for the interpreter")
    parser.add_argument("--isolate", action="store_true", help="processes for jobs with --tiny too")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.device == "cpu" and not args.tiny:
        parser.error("--device cpu is for --tiny: the interpreter takes days for anything larger")
    if args.models is None:
        args.models = list(_TINY_MODELS[:1] if args.tiny else _MODELS)
        if args.quick:
            args.models = args.models[:1]
    return args


def missing_gpu() -> str | None:
    """Why nothing can be measured here."""
    from pagoda.engine.devices.gpu import Surroundings

    return Surroundings.look().obstacle


def job_names(args: argparse.Namespace) -> list[str]:
    """The most telling first. Limits are always measured: shares are of this run."""
    first, *others = (f"engine:{model}" for model in args.models)
    ordered = [
        "limits", "kernels:decode", first, "kernels:accuracy", "promises", "kernels:prefill",
        "kernels:streaming", *others,
    ]  # fmt: skip
    return [name for name in ordered if name.partition(":")[0] in {"limits", *args.only}]


def start(args: argparse.Namespace) -> None:
    """An empty file of results, which says what it is of."""
    from importlib.metadata import PackageNotFoundError, version

    from gpu_parts.results import Results

    versions: dict[str, str | None] = {}
    for name in ("torch", "triton", "transformers", "flashinfer-python", "flash-attn", "kernels"):
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = None
    about = {
        "command": " ".join(sys.argv), "versions": versions, "models": args.models,
        "quick": args.quick, "tiny": args.tiny,
    }  # fmt: skip
    Results.new(args.json, about)


def describe(args: argparse.Namespace) -> dict[str, str]:
    """The device, and the dtype that is measured. Begins to use a GPU."""
    import torch

    if args.device == "cpu":
        return {"device": "Triton's interpreter", "dtype": "float32"}
    properties = torch.cuda.get_device_properties(0)
    runtime = f"ROCm {torch.version.hip}" if torch.version.hip else f"CUDA {torch.version.cuda}"
    has_bfloat16 = torch.cuda.is_bf16_supported(including_emulation=False)
    return {
        "device": f"{properties.name}, {properties.total_memory / 2**30:.0f} GiB, {runtime}",
        "dtype": "bfloat16" if has_bfloat16 else "float16",
    }


def run_here(args: argparse.Namespace, names: list[str]) -> int:
    """Run jobs in this process, which is the only one that touches the device meanwhile."""
    import torch
    from gpu_parts.clock import Clock
    from gpu_parts.jobs import run_job
    from gpu_parts.results import Results
    from gpu_parts.setting import Setting

    from pagoda.models.weights import DTYPES

    logging.basicConfig(format="%(name)s: %(message)s")
    logging.getLogger("pagoda").setLevel(logging.INFO)  # what the engine says of its memory
    results = Results.open(args.json)
    about = results.content["about"]
    about |= describe(args)
    device = torch.device("cuda", 0) if args.device == "cuda" else torch.device("cpu")
    clock = Clock(device, 1 if args.tiny else 15 if args.quick else 40)
    dtype = DTYPES[about["dtype"]]
    setting = Setting(device, dtype, args.tiny, args.quick, tuple(args.models), clock)
    for name in names:
        run_job(setting, results, name)
    return 0


def run_apart(args: argparse.Namespace, names: list[str]) -> None:
    """Run each job in a process of its own, and note those that do not come to their end."""
    from gpu_parts.results import Results

    began = time.monotonic()
    for name in names:
        seconds = _QUICK_JOB_SECONDS if args.quick else _JOB_SECONDS
        if args.quick:
            seconds = min(seconds, int(_QUICK_SECONDS - (time.monotonic() - began)))
        if seconds <= 0:
            Results.open(args.json).job(name).left_out(name, "--quick has had its time")
            continue
        command = [
            sys.executable, __file__, "--job", name, "--device", args.device, "--json",
            str(args.json), "--models", *args.models,
        ]  # fmt: skip
        command += ["--quick"] if args.quick else []
        command += ["--tiny"] if args.tiny else []
        try:
            code = run_guarded(command, seconds)
        except subprocess.TimeoutExpired:
            Results.open(args.json).job(name).failed(name, f"ended after {seconds} s")
            continue
        if code:
            Results.open(args.json).job(name).failed(name, f"its process ended with {code}")


def report(path: Path) -> int:
    """Print the tables."""
    from gpu_parts.report import markdown

    print(markdown(json.loads(path.read_text())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
