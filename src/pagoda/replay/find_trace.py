"""A trace by the name that users give it: a file, or a family and its parameters."""

from __future__ import annotations

from pathlib import Path

from pagoda.errors import InvalidOptionError
from pagoda.replay.trace import Trace
from pagoda.replay.trace_file import TraceFile


def find_trace(name: str, format_name: str | None = None) -> Trace:
    """`name` is a path. Raises `InvalidOptionError` for what is none."""
    if not name:
        raise InvalidOptionError("trace", name, "must be a file")
    return TraceFile(Path(name), format_name)
