"""Stores that benchmarks of tiers speak with, in processes of their own, near and far."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

_HERE = str(Path(__file__).parent)
# In place of this folder, where `tiers` is the benchmark of that name.
sys.path = [str(Path(_HERE).parent / "tests"), *(path for path in sys.path if path != _HERE)]

from tiers.faults import Fault, Line  # noqa: E402
from tiers.stores import BUCKET, KEYS, RedisServer, S3Server  # noqa: E402

sys.path.append(_HERE)

__all__ = ["BUCKET", "KEYS", "RedisServer", "elsewhere", "far_away", "serve_s3"]


@contextmanager
def far_away(port: int, added_s: float, bytes_per_s: float | None = None) -> Iterator[int]:
    """The port by which answers of another one come so much later, and so slowly."""
    if not added_s and bytes_per_s is None:
        yield port
        return
    with elsewhere(serve_line, port, added_s, bytes_per_s) as line_port:
        yield line_port


def serve_line(said: Connection, port: int, added_s: float, bytes_per_s: float | None) -> None:
    line = Line(port)
    line.set(Fault(latency_s=added_s, bytes_per_s=bytes_per_s))
    said.send(line.port)
    said.recv()


def serve_s3(said: Connection) -> None:
    sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - the server's log of each request
    said.send(S3Server().port)
    said.recv()


@contextmanager
def elsewhere(serve: Callable[..., None], *args: object) -> Iterator[int]:
    """A port that a process of its own serves, so that it takes no turns from what is measured."""
    context = get_context("spawn")
    own, said = context.Pipe()
    with ExitStack() as ending:
        process = context.Process(target=serve, args=(said, *args), daemon=True)
        process.start()
        ending.callback(process.join)
        ending.callback(process.terminate)
        assert own.poll(30), "it did not begin"
        yield own.recv()
