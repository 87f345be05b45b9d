"""`pagoda plan`: what fits on a machine that nobody has rented yet."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from pagoda.cli.flags import (
    LAYERS,
    NAMES,
    REAL,
    SIZE,
    SWITCH,
    TEXT,
    TOKENS,
    WHOLE,
    Flag,
    FlagGroup,
    with_flags,
)
from pagoda.cli.plan_model import find_facts
from pagoda.cli.plan_report import print_plan, print_verdicts
from pagoda.cli.writable import require_writable
from pagoda.errors import CapacityError, InvalidOptionError
from pagoda.planning.request import ModelFacts, PlanRequest
from pagoda.planning.result import Plan

_VALIDATE = "validate"


class DoesNotFitError(CapacityError):
    """The engine would not start: an answer, and not a mistake of whoever asked."""


_WIDTH = 100

PLAN_FLAGS = FlagGroup(
    "request",
    PlanRequest,
    (
        Flag("engine", TEXT, "Whose cache: vllm, vllm@0.19.1 or pagoda."),
        Flag("gpu", TEXT, "Accelerator by name: H100, L4, RTX-4090, MI300X …"),
        Flag("memory", SIZE, "Memory of one device, in place of --gpu."),
        Flag("tensor_parallel_size", WHOLE, "Devices that each layer is split over.", short="-tp"),
        Flag(
            "pipeline_parallel_size", WHOLE, "Stages that the layers are dealt out to.", short="-pp"
        ),
        Flag("dtype", TEXT, "Weights that are not quantised: auto, bfloat16, float16 or float32."),
        Flag(
            "quantization",
            TEXT,
            "Weights as fp8, awq, gptq, nvfp4, mxfp4, …, in Pagoda q8_0, q6_k, q4_k, q4_0; none "
            "undoes it.",
        ),
        Flag("activation_dtype", TEXT, "int8: Pagoda on CPUs rounds what meets stored weights."),
        Flag(
            "kv_cache_dtype",
            TEXT,
            "Cache as auto, fp8, int4_per_token_head, …; in Pagoda int4.",
        ),
        Flag(
            "kv_cache_dtype_skip_layers",
            LAYERS,
            "Layers whose cache keeps the weights' dtype, like 0-2,29, or sliding_window; may be "
            "given again.",
        ),
        Flag(
            "kv_retention",
            TEXT,
            "Which tokens of a request stay in Pagoda's cache, like streaming:sinks=4,window=1020.",
        ),
        Flag("request_kv_retention", SWITCH, "Requests may choose what of them stays, in Pagoda."),
        Flag("mamba_ssm_cache_dtype", TEXT, "Recurrent states as float32, bfloat16 …"),
        Flag("mamba_cache_mode", TEXT, "States for prefix sharing: none, align (two), all."),
        Flag("mamba_block_size", WHOLE, "Tokens between states where all are kept."),
        Flag(
            "max_model_len",
            TOKENS,
            "Longest request, as 8192, 32k or 8K; by default what the model was made for.",
        ),
        Flag("block_size", WHOLE, "Tokens of a block; by default the engine's."),
        Flag("gpu_memory_utilization", REAL, "Share that the engine may have of the memory."),
        Flag("kv_cache_memory_bytes", SIZE, "Memory of the cache itself: makes the plan exact."),
        Flag("num_gpu_blocks_override", WHOLE, "Exactly this many blocks."),
        Flag("enforce_eager", SWITCH, "No CUDA graphs: nothing is set aside for them."),
        Flag("max_num_batched_tokens", TOKENS, "Tokens of a step; by default the device's."),
        Flag("max_num_seqs", WHOLE, "Sequences of a step; by default the device's."),
        Flag("context", TOKENS, "Tokens of a user's request; by default max_model_len."),
        Flag("users", WHOLE, "Requests that are to fit at once."),
        Flag("shared_prefix", TOKENS, "Tokens at the beginning that all requests share."),
        Flag("price", REAL, "What one device costs for an hour."),
        Flag(
            "tier",
            NAMES,
            "Where a tier stops paying: nvme, sata, redis-10gbe, s3, host-pcie5 …, or as for "
            "--kv-tier, with link=sata or bandwidth=3GB/s,latency=0.1ms; may be given again.",
        ),
        Flag("prefill_rate", REAL, "Tokens of a prompt a second; by default the device's at best."),
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
            "or `validate OBSERVED.jsonl ARCHITECTURES.json`: compare with start-up logs that "
            "people posted.",
        ),
    ] = None,
    files: Annotated[list[Path] | None, typer.Argument(metavar="[FILES]", hidden=True)] = None,
    speculative_model: Annotated[
        str | None, typer.Option(metavar="MODEL", help="A draft model beside it.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    lists: Annotated[
        bool, typer.Option("--list", help="List the models and accelerators that are known.")
    ] = False,
    html: Annotated[
        Path | None,
        typer.Option("--html", metavar="PATH", help="Write the interactive page, opened with it."),
    ] = None,
) -> None:
    """Say what fits: the cache to the byte, users, context, speed and cost.

    The exit code is 0 if the engine starts, certainly or perhaps, 1 if it does not (of validate: if
    a prediction misses), and 2 for flags that cannot be.
    """
    require_writable("html", html)
    console = Console()
    if not console.is_terminal:
        console.width = _WIDTH  # a pipe has none of its own, and flags should not be broken
    if lists:
        _list(as_json, console)
        return
    if model is None:
        _page_alone(html)
        return
    if model == _VALIDATE and files:
        _validate(files, as_json, console)
        return
    if files:
        raise InvalidOptionError("files", [str(file) for file in files], "name one model alone")

    draft = None if speculative_model is None else find_facts(speculative_model)
    try:
        answer = _plan(model, request, draft, html)
    except CapacityError as error:
        raise DoesNotFitError(error.field, error.value, error.limit) from error
    if as_json:
        typer.echo(json.dumps(answer.as_json(), ensure_ascii=False))
    else:
        print_plan(answer, console)
    if answer.refusals:
        raise typer.Exit(1)


def _plan(model: str, request: PlanRequest, draft: ModelFacts | None, html: Path | None) -> Plan:
    from pagoda.cli.plan_html import plan_with_page
    from pagoda.planning.alternatives import plan_with_alternatives
    from pagoda.planning.tables import find_accelerator

    facts = find_facts(model)
    if request.gpu is not None:
        find_accelerator(request.gpu, instead="--memory")
    if html is None:
        return plan_with_alternatives(facts, request, draft)
    return plan_with_page(facts, request, draft, html, model)


def _list(as_json: bool, console: Console) -> None:
    from pagoda.cli.plan_list import listed, print_list

    if as_json:
        typer.echo(json.dumps(listed(), ensure_ascii=False))
    else:
        print_list(console)


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
    from pagoda.validation.verdict import VerdictKind, count, report

    verdicts = validate(read_observations(files[0]), read_shapes(files[1]))
    if as_json:
        typer.echo(json.dumps(report(verdicts), ensure_ascii=False))
    else:
        print_verdicts(verdicts, console)
    if count(verdicts, VerdictKind.MISS):
        raise typer.Exit(1)
