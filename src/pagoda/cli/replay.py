"""`pagoda replay`: what another cache would have done with a day that has been."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from pagoda.cli.flags import with_flags
from pagoda.cli.replay_flags import (
    REPLAY_FLAGS,
    SCHEDULE_FLAGS,
    ReplayOptions,
    ScheduleOptions,
)
from pagoda.cli.terminal import count_progress
from pagoda.cli.writable import require_writable
from pagoda.errors import InvalidOptionError

if TYPE_CHECKING:
    from pagoda.replay.schedule_what_if import ScheduleAnswer
    from pagoda.replay.trace import Trace
    from pagoda.replay.what_if import CacheAnswer

_WIDTH = 132
"""What the tables take, in characters."""


@with_flags(REPLAY_FLAGS, SCHEDULE_FLAGS)
def replay(
    name: Annotated[
        str,
        typer.Argument(
            metavar="TRACE",
            help="A file of Mooncake's rows, of Pagoda's, or a log of requests; or one that is "
            "made up, like synthetic:chat?requests=10000&seed=1 (chat, agents, rag, system).",
        ),
    ],
    options: ReplayOptions,
    schedule: ScheduleOptions,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    svg: Annotated[
        Path | None,
        typer.Option("--svg", metavar="FILE", help="Write a picture: hit rate over pool sizes."),
    ] = None,
) -> None:
    """Send a trace of requests through the cache and scheduler that serve; say what they do.

    Several --num-blocks, --eviction-policy, --block-size or --max-num-batched-tokens are tried in
    turn, each beside what knowing the future would find.
    """
    from pagoda.replay.find_trace import find_trace

    require_writable("svg", svg)
    console = Console(stderr=True)
    trace = find_trace(name, options.format)
    if options.cache_only:
        answers: Sequence[CacheAnswer | ScheduleAnswer] = _cache_answers(
            trace, options, schedule, console
        )
    else:
        answers = _schedule_answers(trace, options, schedule, console)
    _tell_faults(trace, console)
    _print(answers, as_json)
    if svg is not None:
        from pagoda.cli.replay_picture import Curve, draw

        picture = draw(trace.name, Curve.all_of(answers))
        svg.write_text(picture, "utf-8", errors="replace")  # a file's name may be no text


def _cache_answers(
    trace: Trace, options: ReplayOptions, schedule: ScheduleOptions, console: Console
) -> list[CacheAnswer]:
    from pagoda.replay.what_if import replay_caches

    settings = options.caches(trace, schedule)
    with count_progress(console, trace.name, _total(trace, len(settings))) as on_request:
        answers = replay_caches(
            trace,
            settings,
            whole_blocks=not options.full_blocks_only,
            with_optimum=not options.no_optimum,
            on_request=on_request,
        )
        return list(answers)


def _schedule_answers(
    trace: Trace, options: ReplayOptions, schedule: ScheduleOptions, console: Console
) -> list[ScheduleAnswer]:
    from pagoda.replay.schedule_what_if import replay_servers, servers_of

    if options.full_blocks_only:
        raise InvalidOptionError("full_blocks_only", True, "is for --cache-only: a server does it")
    settings = servers_of(options.caches(trace, schedule), schedule.schedulers(trace))
    dtypes = {setting.cache.kv_cache_dtype for setting in settings}
    costs = {dtype: schedule.cost(dtype) for dtype in dtypes}
    with count_progress(console, trace.name, _total(trace, len(settings))) as on_request:
        answers = replay_servers(
            trace,
            settings,
            lambda setting: costs[setting.cache.kv_cache_dtype],
            with_optimum=not options.no_optimum,
            on_request=on_request,
        )
        return list(answers)


def _total(trace: Trace, num_settings: int) -> int | None:
    return None if trace.num_requests is None else trace.num_requests * num_settings


def _print(answers: Sequence[CacheAnswer | ScheduleAnswer], as_json: bool) -> None:
    """Tables, or one JSON object: of the answer, or with a list of several."""
    if as_json:
        objects = [answer.as_json() for answer in answers]
        told = objects[0] if len(objects) == 1 else {"answers": objects}
        sys.stdout.write(json.dumps(told) + "\n")
        return
    from pagoda.cli.replay_report import tables

    width = None if sys.stdout.isatty() else _WIDTH
    Console(file=sys.stdout, width=width).print(tables(answers))


def _tell_faults(trace: Trace, console: Console) -> None:
    """Rows that could not be read, if there are any; the others were replayed."""
    faults = trace.faults
    if not faults.count:
        return
    rows = "1 row" if faults.count == 1 else f"{faults.count:,} rows"
    lines = [f"{rows} of {trace.name} could not be read and were left out:", *faults.examples]
    if faults.count > len(faults.examples):
        lines.append(f"… and {faults.count - len(faults.examples):,} more")
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
