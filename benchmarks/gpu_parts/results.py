"""What a run has found, in a file that is complete after every figure."""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

Row = dict[str, Any]


class Results:
    """Rows of every job, failures, and what was left out; written whenever something is added.

    {"about": {…}, "jobs": {job: {"rows": […], "failures": […], "left_out": […], "seconds": s}}}

    One process writes at a time; `open` takes up what another has left.
    """

    def __init__(self, path: Path, content: Row) -> None:
        self._path = path
        self.content = content
        self._write()

    @classmethod
    def new(cls, path: Path, about: Row) -> Results:
        """An empty file, whatever was there before."""
        return cls(path, {"about": {**about, "started": time.time()}, "jobs": {}})

    @classmethod
    def open(cls, path: Path) -> Results:
        """A file that is there."""
        return cls(path, json.loads(path.read_text()))

    def job(self, name: str) -> Job:
        """One job's place, made where there is none yet."""
        empty: Row = {"rows": [], "failures": [], "left_out": [], "seconds": None}
        return Job(self, name, self.content["jobs"].setdefault(name, empty))

    @contextmanager
    def timed(self, name: str) -> Iterator[Job]:
        """Run a job; what it raises is noted."""
        job, started = self.job(name), time.perf_counter()
        job.tell("begins")
        with job.attempt(name):
            yield job
        job.finish(time.perf_counter() - started)

    def tell(self, text: str) -> None:
        """A line of progress, with the seconds since the start."""
        seconds = time.time() - self.content["about"]["started"]
        print(f"[{seconds:6.1f} s] {text}", file=sys.stderr, flush=True)

    def _write(self) -> None:
        beside = self._path.with_name(self._path.name + ".new")
        beside.write_text(json.dumps(self.content, indent=1) + "\n")
        os.replace(beside, self._path)


class Job:
    """One job's place in the results."""

    def __init__(self, results: Results, name: str, content: Row) -> None:
        self._results = results
        self._name = name
        self._content = content

    @property
    def rows(self) -> list[Row]:
        """Those added so far."""
        return self._content["rows"]

    def add(self, text: str, **row: Any) -> None:
        """A figure, or several that belong together; `text` says them to whoever watches."""
        self.rows.append(row)
        self._results._write()
        self.tell(text)

    def left_out(self, what: str, reason: str) -> None:
        """Something that is not measured here."""
        self._content["left_out"].append({"what": what, "reason": reason})
        self._results._write()
        self.tell(f"{what} is left out: {reason}")

    def failed(self, what: str, error: str, trace: str = "") -> None:
        """Something that went wrong; the rest goes on."""
        self._content["failures"].append({"what": what, "error": error, "trace": trace})
        self._results._write()
        self.tell(f"{what} failed: {error}")

    @contextmanager
    def attempt(self, what: str) -> Iterator[None]:
        """Notes what the block raises, and goes on after it."""
        try:
            yield
        except Exception as error:
            first = (str(error).strip() or "no message").splitlines()[0]
            trace = traceback.format_exc(limit=-6)
            self.failed(what, f"{type(error).__name__}: {first}", trace)

    def finish(self, seconds: float) -> None:
        """It has come to its end."""
        self._content["seconds"] = round(seconds, 1)
        self._results._write()
        self.tell(f"took {seconds:.0f} s")

    def tell(self, text: str) -> None:
        """A line of progress."""
        self._results.tell(f"{self._name}: {text}")
