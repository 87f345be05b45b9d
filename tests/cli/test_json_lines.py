from __future__ import annotations

import io
import json
import logging

import pytest
from rich.console import Console

from pagoda.cli.main import run
from pagoda.cli.terminal import logging_to

AWKWARD = 'two\nlines, "quoted", [bold] :warning: é \x1b[31m'


def test_a_record_is_one_line_that_parses() -> None:
    console = Console(file=io.StringIO(), width=20)
    logger = logging.getLogger("pagoda.test_json")
    with logging_to(console, "pagoda", log_format="json"):
        logger.warning("%s", AWKWARD, extra={"fields": {"status": 200}})
        try:
            raise ValueError(AWKWARD)
        except ValueError:
            logger.exception("it broke")
    first, second = map(json.loads, console.file.getvalue().splitlines())
    assert first.pop("ts").endswith("+00:00")
    assert first == {
        "level": "WARNING",
        "logger": "pagoda.test_json",
        "message": AWKWARD,
        "status": 200,
    }
    assert second["message"] == "it broke"
    assert "ValueError: two\nlines" in second["exception"]


def test_a_format_that_is_none_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["serve", "--log-format", "xml", "--port", "0"]) == 2
    message = "pagoda: error: --log-format='xml': one of text, json\n"
    assert capsys.readouterr().err == message
