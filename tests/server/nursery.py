"""Servers in processes of their own, born of one that has loaded all that they need.

To load it takes more than a second; to be born of a process that has, some milliseconds. Run as a
program, this module is that process: each line on stdin asks for a server.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pagoda
from pagoda.engine.outputs import RequestOutput
from pagoda.errors import EngineError
from pagoda.server import app as app_module
from pagoda.server import run as run_module
from pagoda.server.app import create_app
from pagoda.server.listener import bind, start_listening, url_of
from pagoda.server.options import ServerOptions
from pagoda.server.run import run
from processes import happens
from server.slow_engine import SlowEngine

PATIENCE_S = 60.0


class Served:
    """A server as its test sees it: a process, and what it writes into a folder."""

    def __init__(self, folder: Path, pid: int) -> None:
        self._folder = folder
        self._pid = pid
        self._wait(lambda: self.out.endswith("\n") or self._has_ended)
        self.url = self.out.strip()

    @property
    def out(self) -> str:
        return (self._folder / "out").read_text()

    @property
    def err(self) -> str:
        return (self._folder / "err").read_text()

    def send_signal(self, number: int) -> None:
        os.kill(self._pid, number)

    def ended(self, timeout_s: float = PATIENCE_S) -> int:
        """Waits for the end, and says the status."""
        self._wait(lambda: self._has_ended, timeout_s)
        return int((self._folder / "status").read_text())

    def kill(self) -> None:
        """If it has not ended."""
        if not self._has_ended:
            self.send_signal(signal.SIGKILL)
            self.ended()

    @property
    def _has_ended(self) -> bool:
        return (self._folder / "status").exists()

    def _wait(self, happened: Any, timeout_s: float = PATIENCE_S) -> None:
        assert happens(happened, timeout_s), self.err


class Nursery:
    """The process that servers are born of."""

    def __init__(self) -> None:
        paths = [Path(pagoda.__file__).parent.parent, Path(__file__).parent.parent]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "server.nursery"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))},
            text=True,
        )

    @contextmanager
    def serving(self, folder: Path, **wish: Any) -> Iterator[Served]:
        """A server as `serve` makes it, as long as the block runs."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        for name in ("out", "err"):
            (folder / name).touch()
        print(json.dumps({"folder": str(folder), **wish}), file=self._process.stdin, flush=True)
        server = Served(folder, int(self._process.stdout.readline()))
        try:
            yield server
        finally:
            server.kill()

    def close(self) -> None:
        self._process.communicate(timeout=PATIENCE_S)
        assert self._process.returncode == 0


def main() -> None:
    """Be the nursery until stdin ends; in each child, the server that was asked for."""
    create_app(SlowEngine())  # type: ignore[arg-type]
    assert "torch" not in sys.modules, "a server without an engine takes seconds longer to start"
    folders: dict[int, Path] = {}
    signal.signal(signal.SIGCHLD, lambda *_: note_ends(folders))
    for line in sys.stdin:
        wish = json.loads(line)
        folder = Path(wish.pop("folder"))
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        else:
            folders[pid] = folder
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
        if pid == 0:
            write_into(folder)
            serve(**wish)
            return  # and end as any program does
        print(pid, flush=True)


def note_ends(folders: dict[int, Path]) -> None:
    """Write down the status of each child that has ended."""
    for pid in list(folders):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            folder = folders.pop(pid)
            (folder / "ending").write_text(str(os.waitstatus_to_exitcode(status)))
            (folder / "ending").rename(folder / "status")


def write_into(folder: Path) -> None:
    """What this process says goes into files of the folder."""
    for stream, name in ((sys.stdout, "out"), (sys.stderr, "err")):
        with (folder / name).open("w") as file:
            os.dup2(file.fileno(), stream.fileno())


def serve(
    options: dict[str, Any] | None = None,
    dies: bool = False,
    hangs: bool = False,
    gives_up: bool = False,
) -> None:
    """A server whose tokens take a while; it prints its address, and that it is done.

    With `dies` its engine breaks behind a token; with `hangs` the engine's last step does not end,
    which the engine waits for, or `gives_up`.
    """
    server_options = ServerOptions(**options or {})
    engine = BreakingEngine() if dies else SlowEngine()
    if gives_up:
        app_module.LAST_STEP_S = run_module.LAST_STEP_S = 0.5
    if hangs:
        engine.watch.begin()
        engine.shutdown = lambda s: asyncio.sleep(s if gives_up else 3600)  # type: ignore
    with bind("127.0.0.1", 0) as listener:
        start_listening(listener)
        print(url_of(listener), flush=True)
        run(create_app(engine, server_options), listener, server_options)  # type: ignore[arg-type]
    print("done")


class BreakingEngine(SlowEngine):
    """It has stopped behind the first token."""

    async def generate(self, *args: Any, **options: Any) -> AsyncGenerator[RequestOutput, None]:
        async for output in super().generate(*args, **options):
            yield output
            self.is_alive = False
            raise EngineError("the engine has stopped")


if __name__ == "__main__":
    main()
