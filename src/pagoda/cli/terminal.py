"""stderr: the log, and bars while something takes time. stdout belongs to the answers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)

from pagoda.cli.json_lines import JSONLines

_COUNTED_AT_ONCE = 256
_TEXT = logging.Formatter("%(levelname)s %(asctime)s %(message)s", datefmt="%m-%d %H:%M:%S")


class ConsoleHandler(logging.Handler):
    """Writes log lines past a progress bar, unwrapped."""

    def __init__(self, console: Console, formatter: logging.Formatter = _TEXT) -> None:
        super().__init__()
        self.setFormatter(formatter)
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record)
            self._console.print(line, markup=False, emoji=False, highlight=False, soft_wrap=True)
        except Exception:
            self.handleError(record)


@contextmanager
def logging_to(console: Console, *names: str, log_format: str = "text") -> Iterator[None]:
    """Show what the loggers of these names have to say, until the block ends.

    `log_format` is text, or json for a JSON object a line.
    """
    handler = ConsoleHandler(console, JSONLines() if log_format == "json" else _TEXT)
    loggers = [logging.getLogger(name) for name in names]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.removeHandler(handler)
            logger.setLevel(level)


@contextmanager
def load_progress(console: Console, model: str) -> Iterator[Callable[[int, int], None]]:
    """A bar for the bytes of a model; yields the callback that moves it."""
    columns = (
        TextColumn("Loading {task.description}", markup=False),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TimeRemainingColumn(),
    )
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as progress:
        task = progress.add_task(model, total=None)

        def on_load(done_bytes: int, total_bytes: int) -> None:
            progress.update(task, completed=done_bytes, total=total_bytes)

        yield on_load


@contextmanager
def run_progress(console: Console, num_runs: int) -> Iterator[Callable[[str], None]]:
    """A bar for runs that are timed; yields the callback that says which one begins.

    It is drawn between runs only: a bar that moves by itself would take time from them.
    """
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(
        *columns,
        console=console,
        transient=True,
        auto_refresh=False,
        disable=not console.is_terminal,
    ) as progress:
        task = progress.add_task("", total=num_runs, completed=-1)

        def on_run(name: str) -> None:
            progress.update(task, description=name, advance=1, refresh=True)

        yield on_run


@contextmanager
def watch_progress(console: Console, name: str) -> Iterator[Callable[[float], None]]:
    """A bar for a time of watching; yields the callback that hears which share of it has gone."""
    columns = (
        TextColumn("Watching {task.description}", markup=False),
        BarColumn(),
        TimeRemainingColumn(),
    )
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as progress:
        task = progress.add_task(name, total=1.0)

        def on_scrape(share: float) -> None:
            progress.update(task, completed=share)

        yield on_scrape


@contextmanager
def count_progress(console: Console, name: str, total: int | None) -> Iterator[Callable[[], None]]:
    """A bar for things that go fast, `total` of them if that is known; yields what counts one."""
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.completed:,.0f}"),
        TimeRemainingColumn(),
    )
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as progress:
        task = progress.add_task(name, total=total)
        count = 0

        def on_one() -> None:
            nonlocal count
            count += 1
            if count % _COUNTED_AT_ONCE == 0:
                progress.update(task, completed=count)

        yield on_one
