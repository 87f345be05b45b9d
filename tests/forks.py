"""Tests in several processes: pytest collects them once and forks, each process takes file by file.

Processes that are forked share what was loaded to collect, most of half a gigabyte, and need not
collect again. What they report goes to the first process, which tests nothing, and tells it as
pytest does. A process that has grown much with what its tests have loaded ends, and another, as
small as all were, is forked in its place.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import struct
import sys
import warnings
from collections.abc import Callable, Iterator
from itertools import chain, groupby, pairwise
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

import psutil
import pytest

from by_file import scope_of

PLACE = struct.Struct("H")
"""Of a group of tests among all groups. Its two bytes come out of a pipe together."""
SECONDS_TO_END = 10.0
"""That a process has to end what its tests have begun, where the run is broken off."""
MUCH_BYTES = 3 * 2**27
"""By which a process may grow and still take other tests."""
GROWN, BROKEN_OFF = 64, 130
"""Exit codes of a process that takes no more tests: it has grown, or was interrupted in one."""

Told = tuple[str, dict[str, Any]]
"""A hook of pytest's, and what it was called with, in plain values."""


class Forks:
    """The run of all tests, in the process that has collected them. A plugin of pytest's."""

    def __init__(self, num_processes: int, begin: Callable[[], None]) -> None:
        """begin: is called in each process, first of all."""
        self._num_processes = num_processes
        self._begin = begin

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        if session.testsfailed or session.config.option.collectonly:
            return None  # pytest's own loop knows what to say
        groups = Groups(session.items)
        running: dict[Connection, Teller] = {}
        try:
            for _ in range(self._num_processes):
                running |= self._forked(session, groups, running)
            self._tell_all(session, groups, running)
        finally:
            for teller in running.values():
                teller.interrupt()
            for teller in running.values():
                teller.end()
        return True

    def _forked(
        self, session: pytest.Session, groups: Groups, running: dict[Connection, Teller]
    ) -> dict[Connection, Teller]:
        """A new process beside those that are running, by where it sends what happens."""
        num_threads = psutil.Process().num_threads()
        assert num_threads == 1, "a thread is running, which would be missing in a forked process"
        context = multiprocessing.get_context("fork")
        receiver, sender = context.Pipe(duplex=False)

        def run() -> None:
            for each in (receiver, *running):
                each.close()  # where nobody reads any more, whoever sends ends
            self._begin()
            growth = Growth()
            is_whole = _run(session, groups.taken_until(growth.is_much), sender)
            sys.exit(BROKEN_OFF if not is_whole else GROWN if growth.was_much else 0)

        process = context.Process(target=run)
        process.start()
        sender.close()  # the process has it: when it ends, so does what comes from it
        return {receiver: Teller(session, process)}

    def _tell_all(
        self, session: pytest.Session, groups: Groups, running: dict[Connection, Teller]
    ) -> None:
        """Until all processes have ended, or pytest has seen enough failures.

        running: is changed with every process that ends or begins.
        """
        while running:
            for connection in wait(list(running)):
                assert isinstance(connection, Connection)
                received = _received(connection)
                if received is None:
                    if running.pop(connection).tell_end():
                        running |= self._forked(session, groups, running)
                else:
                    for hook, told in received:
                        running[connection].tell(hook, told)
                if session.shouldfail:
                    raise session.Failed(session.shouldfail)
                if session.shouldstop:
                    raise session.Interrupted(session.shouldstop)


class Groups:
    """Tests by the group of which one process runs all. What a process takes is gone for others."""

    def __init__(self, items: list[pytest.Item]) -> None:
        self._groups = [list(each) for _, each in groupby(items, lambda i: scope_of(i.nodeid))]
        self._places, writer = os.pipe()
        os.write(writer, b"".join(PLACE.pack(place) for place in range(len(self._groups))))
        os.close(writer)

    def taken_until(self, has_grown: Callable[[], bool]) -> Iterator[pytest.Item]:
        """Tests of one group after another, the next taken when one test is left of the last."""
        while not has_grown() and (place := os.read(self._places, PLACE.size)):
            yield from self._groups[PLACE.unpack(place)[0]]


class Growth:
    """Of this process, since this was made."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._most_bytes = self._own_bytes() + MUCH_BYTES
        self.was_much = False
        """When it was last looked at."""

    def is_much(self) -> bool:
        self.was_much = self._own_bytes() > self._most_bytes
        return self.was_much

    def _own_bytes(self) -> int:
        """Without what is mapped from files."""
        memory = self._process.memory_info()
        return int(memory.rss - memory.shared)


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

    def tell_end(self) -> bool:
        """Returns whether the process has grown. One that ends as none should fails its test, and
        others are not run."""
        self._process.join()
        code = self._process.exitcode
        if code not in (0, GROWN):
            why = f"the process that ran this test ended with {code}"
            report = pytest.TestReport(*self._test, {}, "failed", why, "call")
            self._session.config.hook.pytest_runtest_logreport(report=report)
            self._session.shouldfail = why
        return code == GROWN

    def interrupt(self) -> None:
        """As from the keyboard, so that the test ends what it began."""
        if self._process.pid is not None and self._process.is_alive():
            os.kill(self._process.pid, signal.SIGINT)

    def end(self) -> None:
        """Within some seconds."""
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
        self.forget()

    def forget(self) -> None:
        """What has not been sent."""
        self._unsent = []

    def _add(self, hook: str, **told: object) -> None:
        self._unsent.append((hook, told))


def _received(connection: Connection) -> list[Told] | None:
    """What a process sent next; None if it has ended. A process that is forked where an error is
    being handled would find it behind each of its own."""
    try:
        return list(connection.recv())
    except EOFError:
        return None


def _run(session: pytest.Session, items: Iterator[pytest.Item], sender: Connection) -> bool:
    """In a process of its own: the tests, and what ends a run of pytest. Returns whether all ran,
    and none was interrupted."""
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
    telling.forget()  # warnings of before, which pytest tells each plugin that comes later
    try:
        for item, following in pairwise(chain(items, [None])):
            config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        return True
    except (KeyboardInterrupt, pytest.exit.Exception):
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # what ends now ends once
        return False
    finally:
        config.hook.pytest_sessionfinish(session=session, exitstatus=pytest.ExitCode.OK)
        telling.send()
        capture.stop_global_capturing()
