"""`pagoda replay`: what another cache would have done with a day that has been."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from pagoda.cli.flags import LISTED, SWITCH, TEXT, WHOLES, Flag, FlagGroup, with_flags
from pagoda.cli.terminal import count_progress
from pagoda.cli.writable import require_writable
from pagoda.errors import InvalidOptionError

if TYPE_CHECKING:
    from pagoda.replay.trace import Trace
    from pagoda.replay.what_if import CacheAnswer, CacheSetting

_WIDTH = 100


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """What is tried; None: as the recorded server had it."""

    format: str | None = None
    num_blocks: tuple[int, ...] | None = None
    block_size: tuple[int, ...] | None = None
    """None where the trace tells of no server: the tokens that an id stands for."""
    eviction_policy: Sequence[str] = ()
    full_blocks_only: bool = False
    no_optimum: bool = False


REPLAY_FLAGS = FlagGroup(
    "options",
    ReplayOptions,
    (
        Flag("format", TEXT, "mooncake, pagoda, requests …; found by the first rows."),
        Flag("num_blocks", WHOLES, "Blocks of the pool; several are tried one after another."),
        Flag("block_size", WHOLES, "Tokens of a block; by default those that an id stands for."),
        Flag("eviction_policy", LISTED, "Which cached blocks go first: lru if not given."),
        Flag(
            "full_blocks_only",
            SWITCH,
            "With --cache-only: a prompt's unfinished last block is found by nobody, as in a "
            "server; else it counts as a block where the trace has an id for it.",
        ),
        Flag("no_optimum", SWITCH, "Leave out what knowing the future would find."),
    ),
    defaults={"eviction_policy": []},
)


@with_flags(REPLAY_FLAGS)
def replay(
    name: Annotated[
        str,
        typer.Argument(metavar="TRACE", help="A file: Mooncake's rows, Pagoda's, or a log."),
    ],
    options: ReplayOptions,
    cache_only: Annotated[
        bool, typer.Option("--cache-only", help="One request after another, without a scheduler.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    svg: Annotated[
        Path | None,
        typer.Option("--svg", metavar="FILE", help="Write a picture: hit rate over pool sizes."),
    ] = None,
) -> None:
    """Send a trace of requests through the cache that serves, and say what it found.

    Several --num-blocks, --eviction-policy or --block-size are tried in turn, each beside what
    knowing the future would find.
    """
    from pagoda.replay.find_trace import find_trace

    require_writable("svg", svg)
    console = Console(stderr=True)
    trace = find_trace(name, options.format)
    answers = _answers(trace, _settings(trace, options), options, console)
    tell_faults(trace, console)
    print_answers(answers, as_json)
    if svg is not None:
        from pagoda.cli.replay_picture import draw

        svg.write_text(draw(trace.name, answers), "utf-8")


def _settings(trace: Trace, options: ReplayOptions) -> list[CacheSetting]:
    from pagoda.replay.what_if import settings_of

    recorded = trace.recorded
    num_blocks, block_sizes = options.num_blocks, options.block_size
    policies = tuple(options.eviction_policy)
    if recorded is not None:
        num_blocks = num_blocks or (recorded.num_blocks,)
        block_sizes = block_sizes or (recorded.block_size,)
        policies = policies or (recorded.eviction_policy,)
    if num_blocks is None:
        limit = "how many blocks the pool has: 5000, or 2000,5000,10000"
        raise InvalidOptionError("num_blocks", None, limit)
    return settings_of(
        num_blocks, block_sizes or (trace.unit_size,), policies or ("lru",), trace.unit_size
    )


def _answers(
    trace: Trace, settings: Sequence[CacheSetting], options: ReplayOptions, console: Console
) -> list[CacheAnswer]:
    from pagoda.replay.what_if import replay_caches

    total = None if trace.num_requests is None else trace.num_requests * len(settings)
    with count_progress(console, f"Replaying {trace.name}", total) as on_request:
        answers = replay_caches(
            trace,
            settings,
            whole_blocks=not options.full_blocks_only,
            with_optimum=not options.no_optimum,
            on_request=on_request,
        )
        return list(answers)


def print_answers(answers: Sequence[Any], as_json: bool) -> None:
    """A table, or one JSON object: of the answer, or with a list of several."""
    if as_json:
        objects = [answer.as_json() for answer in answers]
        told = objects[0] if len(objects) == 1 else {"answers": objects}
        sys.stdout.write(json.dumps(told) + "\n")
        return
    from pagoda.cli.replay_report import cache_table

    width = None if sys.stdout.isatty() else _WIDTH
    Console(file=sys.stdout, width=width).print(cache_table(answers))


def tell_faults(trace: Trace, console: Console) -> None:
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
