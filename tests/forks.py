"""Tests in several processes: pytest collects them once and forks, each process takes file by file.

Processes that are forked share what was loaded to collect, most of half a gigabyte, and need not
collect again. What they report goes to the first process, which tests nothing, and tells it as
pytest does.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import struct
import warnings
from collections.abc import Iterator
from itertools import chain, groupby, pairwise
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

import psutil
import pytest
import torch

from by_file import scope_of
from side_by_side import MACHINE

PLACE = struct.Struct("H")
"""Of a group of tests among all groups. Its two bytes come out of a pipe together."""
SECONDS_TO_END = 10.0
"""That a process has to end what its tests have begun, where the run is broken off."""

Group = list[pytest.Item]
"""Tests that one process runs, one after the other."""
Told = tuple[str, dict[str, Any]]
"""A hook of pytest's, and what it was called with, in plain values."""


class Forks:
    """The run of all tests, in the process that has collected them. A plugin of pytest's."""

    def __init__(self, num_processes: int) -> None:
        self._num_processes = num_processes
        torch.set_num_threads(1)  # what is computed while tests are collected starts no others

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        if session.testsfailed or session.config.option.collectonly:
            return None  # pytest's own loop knows what to say
        num_threads = psutil.Process().num_threads()
        assert num_threads == 1, "a thread is running, which would be missing in a forked process"
        groups = [list(group) for _, group in groupby(session.items, lambda i: scope_of(i.nodeid))]
        places = _pipe_of(PLACE.pack(place) for place in range(len(groups)))
        tellers = dict(_forked(session, places, groups) for _ in range(self._num_processes))
        os.close(places)
        try:
            _tell_all(session, tellers)
        finally:
            for teller in tellers.values():
                teller.end()
        return True


class Teller:
    """Tells pytest what one process does, as if it were done here."""

    def __init__(self, session: pytest.Session, process: BaseProcess) -> None:
        self._session = session
        self._process = process
        self._test: tuple[str, tuple[str, int | None, str]] = "", ("", None, "")

    def tell(self, hook: str, told: dict[str, Any]) -> None:
        """Call a hook with what it was called with there."""
        config = self._session.config
        if hook == "pytest_warning_recorded":
            told = {**told, "warning_message": warnings.WarningMessage(*told["warning_message"])}
            config.hook.pytest_warning_recorded.call_historic(kwargs=told)
            return
        if hook == "pytest_runtest_logstart":
            self._test = told["nodeid"], told["location"]
        elif hook == "pytest_runtest_logreport":
            plain = told["report"]
            report = config.hook.pytest_report_from_serializable(config=config, data=plain)
            told = {"report": report}
        getattr(config.hook, hook)(**told)

    def tell_end(self) -> None:
        """A process that ends as none should fails its test, and others are not run."""
        self._process.join()
        if code := self._process.exitcode:
            why = f"the process that ran this test ended with {code}"
            report = pytest.TestReport(*self._test, {}, "failed", why, "call")
            self._session.config.hook.pytest_runtest_logreport(report=report)
            self._session.shouldfail = why

    def end(self) -> None:
        """If the process still runs: as from the keyboard, so that its test ends what it began."""
        if self._process.pid is not None and self._process.is_alive():
            os.kill(self._process.pid, signal.SIGINT)
            self._process.join(SECONDS_TO_END)
            self._process.kill()


class Sender:
    """Sends what happens in one process to the teller of it. A plugin of pytest's."""

    def __init__(self, config: pytest.Config, connection: Connection) -> None:
        self._config = config
        self._connection = connection
        self._unsent: list[Told] = []

    def pytest_runtest_logstart(self, nodeid: str, location: object) -> None:
        self._add("pytest_runtest_logstart", nodeid=nodeid, location=location)
        self.send()  # before anything that might end the process

    def pytest_runtest_logfinish(self, nodeid: str, location: object) -> None:
        self._add("pytest_runtest_logfinish", nodeid=nodeid, location=location)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        hooks = self._config.hook
        plain = hooks.pytest_report_to_serializable(config=self._config, report=report)
        self._add("pytest_runtest_logreport", report=plain)

    def pytest_warning_recorded(
        self, warning_message: warnings.WarningMessage, when: str, nodeid: str, location: object
    ) -> None:
        each = warning_message
        plain = str(each.message), each.category, each.filename, each.lineno
        told = {"warning_message": plain, "when": when, "nodeid": nodeid, "location": location}
        self._add("pytest_warning_recorded", **told)

    def send(self) -> None:
        """All that has happened since this was called before."""
        self._connection.send(self._unsent)
        self._unsent = []

    def _add(self, hook: str, **told: object) -> None:
        self._unsent.append((hook, told))


def _forked(session: pytest.Session, places: int, groups: list[Group]) -> tuple[Connection, Teller]:
    """A new process, and where it sends what happens."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)

    def run() -> None:
        MACHINE.share()
        _run(session, _taken(places, groups), sender)

    process = context.Process(target=run)
    process.start()
    sender.close()  # the process has it: when it ends, so does what comes from it
    return receiver, Teller(session, process)


def _pipe_of(parts: Iterator[bytes]) -> int:
    """A descriptor that processes share: what one reads is gone for the others."""
    reader, writer = os.pipe()
    os.write(writer, b"".join(parts))
    os.close(writer)
    return reader


def _taken(places: int, groups: list[Group]) -> Iterator[pytest.Item]:
    """Tests of one group after another, each taken when the one before has but one test left."""
    while place := os.read(places, PLACE.size):
        yield from groups[PLACE.unpack(place)[0]]


def _run(session: pytest.Session, items: Iterator[pytest.Item], sender: Connection) -> None:
    """In a process of its own: the tests, and what ends a run of pytest."""
    config = session.config
    config.workerinput = {}  # type: ignore[attr-defined]  # by this plugins know such a process
    plugins = config.pluginmanager
    capture: Any = plugins.getplugin("capturemanager")
    capture.stop_global_capturing()  # in a file that all processes share
    capture.start_global_capturing()
    terminal: Any = config.get_terminal_writer()
    terminal._file = open(os.devnull, "w")  # noqa: SIM115  # until the process ends
    telling = Sender(config, sender)
    plugins.register(telling)
    try:
        for item, following in pairwise(chain(items, [None])):
            config.hook.pytest_runtest_protocol(item=item, nextitem=following)
    except (KeyboardInterrupt, pytest.exit.Exception):
        pass
    finally:
        config.hook.pytest_sessionfinish(session=session, exitstatus=pytest.ExitCode.OK)
        telling.send()
        capture.stop_global_capturing()


def _tell_all(session: pytest.Session, tellers: dict[Connection, Teller]) -> None:
    """Until all processes have ended, or pytest has seen enough failures."""
    running = list(tellers)
    while running:
        for connection in wait(running):
            assert isinstance(connection, Connection)
            try:
                for hook, told in connection.recv():
                    tellers[connection].tell(hook, told)
            except EOFError:
                running.remove(connection)
                tellers[connection].tell_end()
            if session.shouldfail:
                raise session.Failed(session.shouldfail)
