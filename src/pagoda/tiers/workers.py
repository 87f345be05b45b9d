"""Threads that do what may take long, in the order in which it was asked for."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

logger = logging.getLogger("pagoda")

Task = Callable[[], None]


class Workers(Protocol):
    """Does tasks, several at once. Any thread may ask."""

    def submit(self, task: Task) -> bool:
        """Have it done; returns at once. False: it will not be, since they are closed or there is
        no thread."""
        ...

    def num_overdue(self, limit_s: float) -> int:
        """Tasks that have been under way for longer."""
        ...

    @property
    def num_threads(self) -> int:
        """Tasks that are done at once."""
        ...

    def close(self) -> None:
        """Begin no task any more. Waits for none."""
        ...


class WorkerThreads:
    """See `Workers`. The threads are daemons and start with the first tasks. Where the machine
    gives no more of them, those that are there do all; each task tries to start another."""

    def __init__(
        self, name: str, num_threads: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.num_threads = num_threads
        self._name = name
        self._clock = clock
        self._tasks: deque[Task] = deque()
        self._changed = threading.Condition()
        self._began: dict[int, float] = {}
        """When each thread began what it does now, by its number."""
        self._num_started = 0
        self._is_closed = False

    def submit(self, task: Task) -> bool:
        with self._changed:
            if self._is_closed:
                return False
            if self._num_started < self.num_threads:
                self._start_one()
            if not self._num_started:
                return False
            self._tasks.append(task)
            self._changed.notify()
            return True

    def num_overdue(self, limit_s: float) -> int:
        now = self._clock()
        with self._changed:
            return sum(now - began > limit_s for began in self._began.values())

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._tasks.clear()
            self._changed.notify_all()

    def _start_one(self) -> None:
        number = self._num_started
        name = f"{self._name}-{number}"
        try:
            threading.Thread(target=self._run, args=(number,), name=name, daemon=True).start()
        except RuntimeError as error:
            logger.warning("%s has %d threads and gets no other: %s", self._name, number, error)
        else:
            self._num_started += 1

    def _run(self, number: int) -> None:
        while True:
            with self._changed:
                self._began.pop(number, None)
                while not self._tasks and not self._is_closed:
                    self._changed.wait()
                if self._is_closed:
                    return
                task = self._tasks.popleft()
                self._began[number] = self._clock()
            try:
                task()
            except BaseException:  # a library's panic may be no `Exception`
                logger.exception("a task of %s failed", self._name)
