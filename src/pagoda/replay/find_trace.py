"""A trace by the name that users give it: a file, or a family and its numbers."""

from __future__ import annotations

from pathlib import Path

from pagoda.errors import InvalidOptionError
from pagoda.replay.synthetic import PREFIX, find_synthetic
from pagoda.replay.trace import Trace
from pagoda.replay.trace_file import TraceFile


def find_trace(name: str, format_name: str | None = None) -> Trace:
    """`name` is a path, or begins with `PREFIX`. Raises `InvalidOptionError` for what is none."""
    if name.startswith(PREFIX):
        if format_name is not None:
            raise InvalidOptionError("format", format_name, "is for files alone")
        return find_synthetic(name)
    if not name:
        raise InvalidOptionError("trace", name, "must be a file")
    return TraceFile(Path(name), format_name)
