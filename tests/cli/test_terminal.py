from __future__ import annotations

import io
import logging

from rich.console import Console

from pagoda.cli.terminal import load_progress, logging_to, run_progress

LINE = "CPU KV cache size: 93,184 tokens, Maximum concurrency for 8,192 tokens per request: 11.38x"


def test_a_log_line_is_neither_wrapped_nor_marked_up() -> None:
    console = Console(file=io.StringIO(), width=20)
    logger = logging.getLogger("pagoda.test_terminal")
    with logging_to(console, "pagoda"):
        logger.info(LINE)
        logger.debug("not this")
        logger.info("%s [bold]", "as it is")
    logger.warning("nor this")
    first, second = console.file.getvalue().splitlines()
    assert first.startswith("INFO ")
    assert first.endswith(f" {LINE}")
    assert second.endswith(" as it is [bold]")


def test_progress_shows_on_a_terminal_only() -> None:
    shown = {}
    for is_terminal in (True, False):
        console = Console(file=io.StringIO(), force_terminal=is_terminal, width=100)
        with load_progress(console, "smollm2") as on_load:
            on_load(512, 1024)
            on_load(1024, 1024)
        shown[is_terminal] = console.file.getvalue()
    assert "Loading smollm2" in shown[True]
    assert shown[False] == ""


def test_a_bar_for_runs_is_drawn_between_them() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    with run_progress(console, 2) as on_run:
        on_run("single, run 1 of 2")
        first = console.file.getvalue()
        on_run("single, run 2 of 2")
    assert "run 1 of 2" in first
    assert "0/2" in first
    assert "1/2" in console.file.getvalue()
