"""`pagoda doctor`: what a running server's metrics say, and what to change."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from pagoda.cli.flags import REAL, SIZE, TEXT, WHOLE, Flag, FlagGroup, with_flags
from pagoda.cli.server_client import ServerKey, client_for
from pagoda.cli.watch_options import WatchOptions
from pagoda.errors import InvalidOptionError

if TYPE_CHECKING:
    from pagoda.cli.model_bytes import ModelBytes
    from pagoda.doctor import Diagnosis, Machine, Window
    from pagoda.planning.request import ModelFacts

_CHANGE = 1
"""Exit code where something should change."""


@dataclass(frozen=True, slots=True)
class Told:
    """What is known of the model and the machine."""

    model: str | None = None
    quantization: str | None = None
    weight_bytes: int | None = None
    kv_token_bytes: int | None = None
    gpu: str | None = None
    bandwidth: float | None = None
    tensor_parallel_size: int = 1


WATCH_FLAGS = FlagGroup(
    "watching",
    WatchOptions,
    (
        Flag("watch", REAL, "Seconds to watch."),
        Flag("interval", REAL, "Seconds between two readings."),
    ),
)
TOLD_FLAGS = FlagGroup(
    "told",
    Told,
    (
        Flag("model", TEXT, "The model, as for `pagoda plan`, for its size."),
        Flag("quantization", TEXT, "The server's own flag, where it has it."),
        Flag("weight_bytes", SIZE, "Weights that a step reads, in place of the model's."),
        Flag("kv_token_bytes", SIZE, "K and V of a token in all layers, in place of the model's."),
        Flag("gpu", TEXT, "The accelerator, as for `pagoda plan`, for its bandwidth."),
        Flag("bandwidth", REAL, "GB/s that its memory delivers, in place of the table's."),
        Flag("tensor_parallel_size", WHOLE, "Accelerators that a replica is spread over."),
    ),
)


@with_flags(WATCH_FLAGS, TOLD_FLAGS)
def doctor(
    url: Annotated[str, typer.Argument(metavar="URL", help="The server, Pagoda's or vLLM's.")],
    watching: WatchOptions,
    told: Told,
    api_key: ServerKey = None,
    served_model_name: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Which model, where the metrics tell of several."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Watch a running server's metrics and say what bounds it and what to change.

    Exit code 0: healthy, or nothing to judge by; 1: something should change; 2: refused, or no
    engine there.
    """
    diagnosis = _examine(url, watching, told, api_key, served_model_name)
    if as_json:
        shown = {"schema": 1, "url": url, **diagnosis.as_dict()}
        sys.stdout.write(json.dumps(shown, ensure_ascii=False) + "\n")
    else:
        from pagoda.cli.doctor_report import report

        width = None if sys.stdout.isatty() else 100
        Console(file=sys.stdout, width=width).print(report(url, diagnosis))
    if not diagnosis.is_healthy:
        raise typer.Exit(_CHANGE)


def _examine(
    url: str, watching: WatchOptions, told: Told, api_key: str | None, served_model_name: str | None
) -> Diagnosis:
    from pagoda.cli.metrics_watch import metrics_url, watch
    from pagoda.cli.plan_model import find_facts
    from pagoda.cli.terminal import watch_progress
    from pagoda.doctor import Scrape, Window, examine

    machine_of(told)  # what cannot be is refused before anything is asked
    facts = None if told.model is None else find_facts(told.model)

    def machine_at(window: Window) -> Machine:
        return machine_of(told, None if facts is None else _sizes(facts, told, window))

    def check(first: Scrape) -> None:  # and what does not go with this server before anybody waits
        machine_at(Window([first, first], served_model_name))

    address = metrics_url(url)
    with client_for(api_key) as client, watch_progress(Console(stderr=True), url) as on_scrape:
        scrapes = watch(client, address, watching, on_scrape, check)
    window = Window(scrapes, served_model_name)
    return examine(window, machine_at(window))


def _sizes(facts: ModelFacts, told: Told, window: Window) -> ModelBytes:
    """The model's sizes as it is served there. Raises `RefusedError` as `model_bytes` does."""
    from pagoda.cli.model_bytes import Served, model_bytes
    from pagoda.doctor.figures import cache_of

    cache, running = cache_of(window), window.gauge("num_requests_running")
    at_once = 0.0 if running is None else running.mean / cache.num_replicas
    served = Served(
        engine=window.engine,
        gpu=told.gpu,
        tensor_parallel_size=told.tensor_parallel_size,
        quantization=told.quantization,
        dtype=cache.weights_dtype,
        kv_cache_dtype=cache.dtype,
        skipped_layers=cache.skipped_layers,
        kv_retention=None if cache.kept is None else cache.kept.name,
        block_size=cache.block_size,
        num_sequences=max(round(at_once), 1),
    )
    return model_bytes(facts, served)


def machine_of(told: Told, sizes: ModelBytes | None = None) -> Machine:
    """What is known, with the model's and the accelerator's figures where none is given.

    Raises `RefusedError` for an accelerator that is not known, and figures that cannot be.
    """
    from pagoda.doctor import Machine
    from pagoda.planning.tables import find_accelerator

    weights, kv_token = (None, None) if sizes is None else (sizes.weights, sizes.kv_token)
    bandwidth = intensity = None
    if told.gpu is not None:
        device = find_accelerator(told.gpu, instead="--bandwidth")
        bandwidth, intensity = device.bandwidth, device.bf16_rate / device.bandwidth
    if told.bandwidth is not None:
        if not 0 < told.bandwidth < 1e6:
            limit = "must be above 0 and below 1000000 GB/s"
            raise InvalidOptionError("bandwidth", told.bandwidth, limit)
        bandwidth = told.bandwidth * 1e9
    return Machine(
        weight_bytes=told.weight_bytes or weights,
        kv_token_bytes=told.kv_token_bytes or kv_token,
        bandwidth=bandwidth,
        num_accelerators=told.tensor_parallel_size,
        intensity=intensity,
    )
