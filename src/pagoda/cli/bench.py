"""`pagoda bench`: the workloads that engines are compared on, beside the machine's limit."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from pagoda.cli.bench_report import BenchedEngine, BenchRow, limits_line, table
from pagoda.cli.engine_flags import ENGINE_FLAGS
from pagoda.cli.engine_start import load_for_bench
from pagoda.cli.flags import TEXTS, WHOLE, Flag, FlagGroup, with_flags
from pagoda.cli.terminal import logging_to, run_progress
from pagoda.engine.options import EngineOptions
from pagoda.engine.slow_notice import told_if_slow
from pagoda.errors import InvalidOptionError
from pagoda.roofline import WORKLOADS, MachineLimits, Work, WorkItem, draw, roofline_seconds
from pagoda.sizing.capacity import GIB

if TYPE_CHECKING:
    from pagoda.engine.build import Model
    from pagoda.engine.timing import RunTimes

logger = logging.getLogger("pagoda")

_KV_CACHE_BYTES = 2 * GIB
_WARM_UP = (WorkItem(tuple(range(50, 100)), 8),)
"""Ids that no workload has."""
_WIDTH = 80
"""The table's width where stdout is no terminal, in characters."""


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """What is measured. Raises `InvalidOptionError` for a workload or a number that will not do."""

    workload: Sequence[str] = field(default_factory=list)
    """Names in `WORKLOADS`; none means all."""
    repeat: int = 3

    def __post_init__(self) -> None:
        for name in self.workload:
            if name not in WORKLOADS:
                raise InvalidOptionError("workload", name, f"one of {', '.join(WORKLOADS)}")
        if self.repeat < 1:
            raise InvalidOptionError("repeat", self.repeat, "must be a whole number of at least 1")


BENCH_FLAGS = FlagGroup(
    "bench_options",
    BenchOptions,
    (
        Flag("workload", TEXTS, f"One of {', '.join(WORKLOADS)}; may be given again."),
        Flag("repeat", WHOLE, "Runs of each workload, of which the best counts."),
    ),
    defaults={"workload": []},
)

_ENGINE_FLAGS = ENGINE_FLAGS.plus(
    Flag("seed", WHOLE, "Where the workloads are drawn from: the same seed, the same work.")
)
_LONGEST = 8192
"""Tokens of a request, unless a flag says otherwise or the model takes fewer."""


@with_flags(BENCH_FLAGS, _ENGINE_FLAGS)
def bench(
    bench_options: BenchOptions,
    options: EngineOptions,
    named: Annotated[
        list[str] | None, typer.Argument(metavar="WORKLOAD", help="As --workload.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Nothing but one JSON object a line and workload.")
    ] = False,
) -> None:
    """Time the workloads that engines are compared on, all of them unless some are named.

    The KV cache takes 2 GiB unless a flag says otherwise. A table goes to stdout, then one JSON
    object a line and workload.
    """
    chosen = replace(bench_options, workload=[*bench_options.workload, *(named or [])])
    workloads = chosen.workload or WORKLOADS
    if options.max_model_len is not None:
        for name in workloads:
            _require_length(name, draw(name, options.seed), options.max_model_len)
    console = Console(stderr=True)
    with logging_to(console, "pagoda"):
        sized = _with_kv_cache(options)
        started = time.perf_counter()
        model = load_for_bench(sized, console)
        if options.max_model_len is None:
            model = replace(model, max_model_len=min(model.max_model_len, _LONGEST))
        bencher = Bench(model, sized, time.perf_counter() - started)
        rows = bencher.run(workloads, chosen.repeat, console)
    if not as_json:
        out = Console(file=sys.stdout, width=None if sys.stdout.isatty() else _WIDTH)
        out.print(table(rows))
        for line in (
            f"weights: {model.held}",
            limits_line(bencher.limits, options.activation_dtype),
        ):
            out.print(line, highlight=False, soft_wrap=True)
    for row in rows:
        sys.stdout.write(json.dumps(row.as_json()) + "\n")


class Bench:
    """One engine, ready to be timed."""

    def __init__(self, model: Model, options: EngineOptions, loading_s: float) -> None:
        """Measures the machine, builds an engine and runs a short request.

        The model took `loading_s` to load. Raises `RefusedError` for memory that will not do.
        """
        from pagoda.engine.build import assemble
        from pagoda.engine.llm import LLM

        self._model = model
        self._options = options
        self.limits = self._measure()  # before the cache takes the memory that this needs
        started = time.perf_counter()
        engine, running = assemble(model, options)
        self._llm = LLM.from_engine(engine)
        self._run(_WARM_UP)
        self._ready_s = loading_s + time.perf_counter() - started
        with told_if_slow("having the system provide the cache's memory"):
            for _ in running.chores:  # which a server does while it is idle
                pass

    def run(self, workloads: Sequence[str], repeat: int, console: Console) -> list[BenchRow]:
        """Run each workload `repeat` times, with an empty prefix cache every time.

        Raises `InvalidOptionError` before the first run if the model is too small for one of them.
        """
        works = {name: self._draw(name) for name in workloads}
        runs: dict[str, list[RunTimes]] = {name: [] for name in works}
        with run_progress(console, len(works) * repeat) as on_run:
            for name, work in works.items():
                for number in range(1, repeat + 1):
                    on_run(f"{name}, run {number} of {repeat}")
                    times = self._run(work)
                    runs[name].append(times)
                    logger.info("%s, run %d of %d: %.2f s", name, number, repeat, times.duration_s)
                self.limits = self.limits.best_of(self._measure())
        return [self._row(name, works[name], runs[name]) for name in works]

    def _draw(self, name: str) -> Work:
        work = draw(name, self._options.seed, self._model.spec.vocab_size)
        _require_length(name, work, self._model.max_model_len)
        return work

    def _run(self, work: Work) -> RunTimes:
        from pagoda.engine.timing import time_run

        self._llm.reset_prefix_cache()
        return time_run(self._llm.engine, work)

    def _measure(self) -> MachineLimits:
        return self._model.loaded.measure_limits(self._options)

    @property
    def _cache_formats(self) -> tuple[str, ...]:
        """How K and V of each layer are stored."""
        from pagoda.engine.devices.cache_spec import asked_formats

        return asked_formats(self._model.spec, self._options, self._model.dtype)

    def _row(self, name: str, work: Work, runs: Sequence[RunTimes]) -> BenchRow:
        return BenchRow(
            workload=name,
            seed=self._options.seed,
            num_prompt_tokens=sum(len(item.prompt_token_ids) for item in work),
            runs=tuple(runs),
            ready_s=self._ready_s,
            roofline_s=roofline_seconds(
                self._model.spec,
                self._cache_formats,
                self._model.held.step_bytes,
                work,
                self.limits,
            ),
            limits=self.limits,
            weights=self._model.held,
            activation_dtype=self._options.activation_dtype,
            kv_cache_dtype=self._options.kv_cache_dtype,
            engine=self._setting(),
        )

    def _setting(self) -> BenchedEngine:
        scheduler = self._llm.engine.scheduler
        cache = scheduler.cache.stats()
        return BenchedEngine(
            num_blocks=cache.num_blocks,
            block_size=cache.block_size,
            max_num_batched_tokens=scheduler.max_num_batched_tokens,
            max_num_seqs=scheduler.max_num_seqs,
        )


def _require_length(name: str, work: Work, max_model_len: int) -> None:
    """Raises `InvalidOptionError` where a request of the workload is longer."""
    longest = max(len(item.prompt_token_ids) + item.num_output_tokens for item in work)
    if longest > max_model_len:
        limit = f"the workload {name} needs at least {longest}"
        raise InvalidOptionError("max_model_len", max_model_len, limit)


def _with_kv_cache(options: EngineOptions) -> EngineOptions:
    """2 GiB for the cache, the peers' figure, unless its size was chosen."""
    chosen = (options.kv_cache_memory_bytes, options.gpu_memory_utilization)
    if any(value is not None for value in chosen):
        return options
    return replace(options, kv_cache_memory_bytes=_KV_CACHE_BYTES)
