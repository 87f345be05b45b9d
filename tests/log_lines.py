"""What tests log, for the report of one that fails, at little cost to those that do not.

pytest's own plugin goes through all loggers six times a test, and PyTorch, transformers and others
make hundreds of them: a millisecond and a half of each test. It is left to the tests that ask for
`caplog`, and to all of them where its options are used.
"""

from __future__ import annotations

import logging
from collections.abc import Generator
from io import StringIO
from typing import Any

import pytest

THEIRS = "logging-plugin"
"""pytest's name for its own."""
OPTIONS = ("log_level", "log_file", "log_cli", "log_cli_level")
"""What can be asked of it, by a flag or in the configuration."""
ROOT = logging.getLogger()


class LogLines:
    """A plugin in the place of pytest's own, which it calls where a test asks for `caplog`."""

    def __init__(self, theirs: Any) -> None:
        """`theirs`: pytest's plugin."""
        self._theirs = theirs
        self._handler = logging.StreamHandler(StringIO())
        self._handler.setFormatter(theirs.formatter)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self) -> Generator[None, object, object]:
        """One handler for all tests, at the root."""
        ROOT.addHandler(self._handler)
        try:
            return (yield)
        finally:
            ROOT.removeHandler(self._handler)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, object, object]:
        if asks(item):
            return (yield from self._theirs.pytest_runtest_setup(item))
        return (yield from self._reported(item, "setup"))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        if asks(item):
            return (yield from self._theirs.pytest_runtest_call(item))
        return (yield from self._reported(item, "call"))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, object, object]:
        if asks(item):
            return (yield from self._theirs.pytest_runtest_teardown(item))
        return (yield from self._reported(item, "teardown"))

    def _reported(self, item: pytest.Item, when: str) -> Generator[None, object, object]:
        """What is logged meanwhile goes into the report."""
        lines = StringIO()
        self._handler.setStream(lines)
        try:
            return (yield)
        finally:
            item.add_report_section(when, "log", lines.getvalue().strip())


def asks(item: pytest.Item) -> bool:
    """Whether a test, or a fixture of it, looks at what is logged."""
    return "caplog" in getattr(item, "fixturenames", ())


def is_set(config: pytest.Config, option: str) -> bool:
    """Whether an option has a value, by a flag or in the configuration."""
    return config.getoption(option, None) is not None or bool(config.getini(option))


def pytest_sessionstart(session: pytest.Session) -> None:
    """pytest has loaded its own by now. What is wanted of it by an option is left to it."""
    plugins = session.config.pluginmanager
    theirs = plugins.get_plugin(THEIRS)
    if theirs is not None and not any(is_set(session.config, option) for option in OPTIONS):
        plugins.unregister(theirs)
        plugins.register(LogLines(theirs), "log-lines")
