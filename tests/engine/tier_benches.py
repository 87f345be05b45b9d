"""Real tiers of engines, each with the faults that its store can have."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

import pytest

from pagoda.tiers import disk_folder
from pagoda.tiers.disk_folder import DiskFolder
from tiers.faults import WELL, Fault, Line
from tiers.stores import BUCKET, KEYS, RedisServer, S3Server

HURRIED_S = 0.15
"""What a call of a tier may take that hangs."""
READS, WRITES = "reads", "writes"


@dataclass(frozen=True)
class Trouble:
    """Something that happens to a store, and how it ends."""

    opens: str
    """Which breaker: `READS`, with which nothing is stored either, or `WRITES`; "": none."""
    begin: Callable[[Any], None]
    end: Callable[[Any], None]
    is_hurried: bool = False
    """Calls hang, and are given little time."""


class Bench(Protocol):
    """A store that is well or not."""

    option: str
    """As `kv_tier` names it."""
    troubles: dict[str, Trouble]

    def close(self) -> None: ...


def trouble(opens: str, begin: Callable[[Any], None], end: Callable[[Any], None], **more: bool):
    return Trouble(opens, begin, end, **more)


def on_the_line(opens: str, **fault: Any) -> Trouble:
    is_hurried = not opens or "hangs" in fault
    return trouble(
        opens,
        lambda bench: bench.line.set(Fault(**fault)),
        lambda bench: bench.line.set(WELL),
        is_hurried=is_hurried,
    )


LINE_TROUBLES = {
    "refused": on_the_line("reads", refuses=True),
    "hang": on_the_line("reads", hangs=True),
    "slow": on_the_line("", bytes_per_s=30_000.0),
    "reset in mid-body": on_the_line("reads", resets_after=1500),
}


class RedisBench:
    """redis-server behind a line."""

    troubles: ClassVar[dict[str, Trouble]] = {
        **LINE_TROUBLES,
        "full": trouble(
            "writes",
            lambda bench: bench.server.ask("CONFIG", "SET", "maxmemory", 1),
            lambda bench: bench.server.ask("CONFIG", "SET", "maxmemory", 0),
        ),
        "no permission": trouble(
            "reads",
            lambda bench: bench.server.ask("ACL", "SETUSER", "default", "nopass", "-@all"),
            lambda bench: bench.server.ask("ACL", "SETUSER", "default", "nopass", "+@all"),
        ),
        "may only read": trouble(
            "writes",
            lambda bench: bench.server.ask("ACL", "SETUSER", "default", "nopass", "-@write"),
            lambda bench: bench.server.ask("ACL", "SETUSER", "default", "nopass", "+@all"),
        ),
        "dies and comes back": trouble(
            "reads",
            lambda bench: bench.server.kill(),
            lambda bench: bench.server.start(),
        ),
    }

    def __init__(self, folder: Path) -> None:
        self.server = RedisServer(folder)
        self.line = Line(self.server.port)
        self.option = f"redis://127.0.0.1:{self.line.port},store=always,timeout=5"

    def close(self) -> None:
        self.line.close()
        self.server.kill()


class S3Bench:
    """moto's S3 behind a line."""

    troubles: ClassVar[dict[str, Trouble]] = {
        **LINE_TROUBLES,
        "5xx": on_the_line("reads", status="503 SlowDown"),
        "full": on_the_line("reads", status="507 InsufficientStorage"),
        "no permission": on_the_line("reads", status="403 AccessDenied"),
        "dies and comes back": trouble(
            "reads",
            lambda bench: bench.line.set(Fault(refuses=True)),
            lambda bench: (bench.server.make_well(), bench.line.set(WELL)),
        ),
    }

    def __init__(self, folder: Path) -> None:
        self.server = S3Server()
        self.line = Line(self.server.port)
        self.option = (
            f"s3://{BUCKET}/frames,endpoint=http://127.0.0.1:{self.line.port},"
            "store=always,timeout=5,compression=none"
        )

    def close(self) -> None:
        self.line.close()
        self.server.stop()


class DiskBench:
    """A folder, and what reads and writes its files, which can be made to fail."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "tier"
        self.option = f"disk:{self.folder},size=64MiB,timeout=5"
        self._reading = self._writing = lambda: None
        self._cuts = False
        self._patch = pytest.MonkeyPatch()
        self._released = threading.Event()
        read, write = disk_folder._read, DiskFolder._write

        def read_badly(*args: Any) -> bytes:
            self._reading()
            content = read(*args)
            return content[: len(content) // 2] if self._cuts else content

        def write_badly(*args: Any, **options: Any) -> None:
            self._writing()
            write(*args, **options)

        self._patch.setattr(disk_folder, "_read", read_badly)
        self._patch.setattr(DiskFolder, "_write", write_badly)

    @property
    def troubles(self) -> dict[str, Trouble]:
        return {
            "input and output errors": self._failing("reads", OSError(5, "I/O error")),
            "hang": self._doing("reads", self._hang, is_hurried=True),
            "slow": self._doing("", lambda: time.sleep(0.03), is_hurried=True),
            "torn": trouble("", lambda bench: bench._cut(True), lambda bench: bench._cut(False)),
            "full": self._failing("writes", OSError(28, "No space left on device"), reads=False),
            "no permission": self._failing("reads", PermissionError(13, "no permission")),
            "read-only": self._failing("writes", OSError(30, "read-only"), reads=False),
            "is gone": trouble(
                "", lambda bench: shutil.rmtree(bench.folder / "frames"), lambda bench: None
            ),
        }  # fmt: skip

    def close(self) -> None:
        self._patch.undo()
        self._released.set()

    def _hang(self) -> None:
        self._released.wait(30)

    def _cut(self, cuts: bool) -> None:
        self._cuts = cuts

    def _set(self, reading: Callable[[], None], writing: Callable[[], None]) -> None:
        self._released.set()
        self._released = threading.Event()
        self._reading, self._writing = reading, writing

    def _doing(self, opens: str, act: Callable[[], None], **more: bool) -> Trouble:
        return trouble(
            opens,
            lambda bench: bench._set(act, act),
            lambda bench: bench._set(lambda: None, lambda: None),
            **more,
        )

    def _failing(self, opens: str, error: OSError, *, reads: bool = True) -> Trouble:
        def fail() -> None:
            raise error

        return trouble(
            opens,
            lambda bench: bench._set(fail if reads else lambda: None, fail),
            lambda bench: bench._set(lambda: None, lambda: None),
        )


BENCHES = {"disk": DiskBench, "redis": RedisBench, "s3": S3Bench}


@contextmanager
def quick_clocks() -> Iterator[None]:
    """Tiers that failed are tried again after hundredths of a second in place of seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pagoda.tiers.prober._TICK_S", 0.02)
        patch.setattr("pagoda.tiers.prober._UNUSED_S", 0.5)
        patch.setattr("pagoda.tiers.breaker.FIRST_WAIT_S", 0.05)
        patch.setattr("pagoda.tiers.breaker.LONGEST_WAIT_S", 0.2)
        for name, value in KEYS.items():
            patch.setenv(name, value)
        yield
