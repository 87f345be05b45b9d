"""What takes long is told, and nothing else."""

from __future__ import annotations

import logging
import threading

import pytest

from pagoda.engine.slow_notice import told_if_slow


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
    timers = [each for each in threading.enumerate() if isinstance(each, threading.Timer)]
    assert all(timer.finished.is_set() for timer in timers)
