"""What takes long is told, and nothing else."""

from __future__ import annotations

import logging
import threading

import pytest

from pagoda.engine import slow_notice
from pagoda.engine.slow_notice import counted, told_if_slow


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> threading.Event:
    """Set once the log has a line."""
    event = threading.Event()
    caplog.set_level(logging.INFO, "pagoda")
    caplog.handler.addFilter(lambda record: event.set() is None)
    return event


def test_what_takes_long_is_told_while_it_does(
    told: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    with told_if_slow("compiling", after_s=0.0):
        assert told.wait(20)
    assert caplog.messages == ["compiling"]


def test_what_is_quick_is_not_told(told: threading.Event, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ValueError, match="even"), told_if_slow("compiling", after_s=60.0):
        raise ValueError("even where it fails")
    assert caplog.messages == []


class Lines(logging.Handler):
    """Keeps what is told, and says when there are enough lines."""

    def __init__(self, enough: int) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.are_enough = threading.Event()
        self._enough = enough

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())
        if len(self.texts) >= self._enough:
            self.are_enough.set()


def lines(enough: int) -> list[str]:
    """What is told from now on, once there are so many lines."""
    handler = Lines(enough)
    logging.getLogger("pagoda").addHandler(handler)
    try:
        assert handler.are_enough.wait(20)
    finally:
        logging.getLogger("pagoda").removeHandler(handler)
    return handler.texts[:enough]


def test_what_goes_on_is_told_again_with_the_part_it_is_at(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "pagoda")
    monkeypatch.setattr(slow_notice, "_INTERVAL_S", 0.001)
    with told_if_slow("calibrating", after_s=0.0) as begin:
        *_, without = lines(enough=2)
        parts = [lines(enough=2)[-1] for _ in counted(begin, "layer", "ab", 2)]
    assert caplog.messages[0] == "calibrating"
    assert "still at it" in without
    assert [part.partition(" now")[2] for part in (without, *parts)] == [
        "",
        " (layer 1 of 2)",
        " (layer 2 of 2)",
    ]
