"""`pagoda plan`: what fits on a machine that nobody has rented yet."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from pagoda.cli.flags import REAL, SIZE, TEXT, WHOLE, Flag, FlagGroup, with_flags
from pagoda.cli.plan_model import find_facts
from pagoda.cli.plan_report import print_plan, print_verdicts
from pagoda.errors import InvalidOptionError
from pagoda.planning.request import PlanRequest

_VALIDATE = "validate"
_WIDTH = 100

PLAN_FLAGS = FlagGroup(
    "request",
    PlanRequest,
    (
        Flag("engine", TEXT, "Whose cache: vllm, vllm@0.19.1 or pagoda."),
        Flag("gpu", TEXT, "Accelerator by name: H100, L4, RTX-4090, MI300X …"),
        Flag("memory", SIZE, "Memory of one device, in place of --gpu."),
        Flag("tensor_parallel_size", WHOLE, "Devices that each layer is split over."),
        Flag("pipeline_parallel_size", WHOLE, "Stages that the layers are dealt out to."),
        Flag("dtype", TEXT, "Of weights that are not quantised: auto, bfloat16, float16, float32."),
        Flag("quantization", TEXT, "Of weights: fp8, awq, gptq, nvfp4, mxfp4, …; none undoes it."),
        Flag("kv_cache_dtype", TEXT, "Of the cache: auto, fp8, int4_per_token_head, nvfp4, …"),
        Flag("mamba_ssm_cache_dtype", TEXT, "Of recurrent states: float32, bfloat16 …"),
        Flag("max_model_len", WHOLE, "Longest request; by default what the model was made for."),
        Flag("block_size", WHOLE, "Tokens of a block; by default the engine's."),
        Flag("gpu_memory_utilization", REAL, "Share that the engine may have of the memory."),
        Flag("kv_cache_memory_bytes", SIZE, "Memory of the cache itself: makes the plan exact."),
        Flag("num_gpu_blocks_override", WHOLE, "Exactly this many blocks."),
        Flag("max_num_batched_tokens", WHOLE, "Tokens of a step; by default the device's."),
        Flag("max_num_seqs", WHOLE, "Sequences of a step; by default the device's."),
        Flag("context", WHOLE, "Tokens of a user's request; by default max_model_len."),
        Flag("users", WHOLE, "Requests that are to fit at once."),
        Flag("shared_prefix", WHOLE, "Tokens at the beginning that all requests share."),
        Flag("price", REAL, "Of one device for an hour."),
    ),
)


@with_flags(PLAN_FLAGS)
def plan(
    request: PlanRequest,
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL",
            help="Directory, config.json, .gguf file, name of a well-known model or hub id; "
            "or `validate OBSERVED.jsonl ARCHITECTURES.json`: compare with start-up logs that people posted.",
        ),
    ] = None,
    files: Annotated[list[Path] | None, typer.Argument(metavar="[FILES]", hidden=True)] = None,
    speculative_model: Annotated[
        str | None, typer.Option(metavar="MODEL", help="A draft model beside it.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    html: Annotated[
        Path | None,
        typer.Option("--html", metavar="PATH", help="Write the interactive page, opened with it."),
    ] = None,
) -> None:
    """Say what fits: the cache to the byte, users, context, speed and cost."""
    console = Console()
    if not console.is_terminal:
        console.width = _WIDTH  # a pipe has none of its own, and flags should not be broken
    if model is None:
        _page_alone(html)
        return
    if model == _VALIDATE and files:
        _validate(files, as_json, console)
        return
    if files:
        raise InvalidOptionError("files", [str(file) for file in files], "name one model alone")

    from pagoda.cli.plan_html import plan_with_page
    from pagoda.planning.alternatives import plan_with_alternatives

    draft = None if speculative_model is None else find_facts(speculative_model)
    facts = find_facts(model)
    if html is None:
        answer = plan_with_alternatives(facts, request, draft)
    else:
        answer = plan_with_page(facts, request, draft, html)
    if as_json:
        typer.echo(json.dumps(answer.as_json(), ensure_ascii=False))
    else:
        print_plan(answer, console)


def _page_alone(html: Path | None) -> None:
    if html is None:
        limit = "a directory, config.json, .gguf file, well-known name or hub id; or --html PATH"
        raise InvalidOptionError("model", None, limit)

    from pagoda.cli.plan_html import write_page

    write_page(html)


def _validate(files: list[Path], as_json: bool, console: Console) -> None:
    if len(files) != 2:
        limit = "two files: OBSERVED.jsonl ARCHITECTURES.json"
        raise InvalidOptionError("files", [str(file) for file in files], limit)

    from pagoda.validation.observed import read_observations, read_shapes
    from pagoda.validation.validate import validate
    from pagoda.validation.verdict import report

    verdicts = validate(read_observations(files[0]), read_shapes(files[1]))
    if as_json:
        typer.echo(json.dumps(report(verdicts), ensure_ascii=False))
    else:
        print_verdicts(verdicts, console)
