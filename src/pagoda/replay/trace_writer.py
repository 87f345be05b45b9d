"""The files of a trace that grows: the newest by its name, older ones by its name and a number.

day.jsonl      being written
day.jsonl.1    full before that
day.jsonl.2    …, the oldest is deleted
"""

from __future__ import annotations

import os
from itertools import islice, pairwise
from pathlib import Path

from pagoda.errors import InvalidOptionError

NUM_OLDER = 3
"""Files kept beside the newest."""


class TraceWriter:
    """Appends lines, each by one write: what a crash cuts off is the last line alone.

    All files together take at most `most_bytes`, each of them a part. A file that is there already
    becomes the first of the older ones, unless it has a header alone: starts without a request do
    not push out a day.
    """

    def __init__(self, path: Path, header: str, most_bytes: int) -> None:
        """Raises `InvalidOptionError` naming `record_trace` where no file can be written."""
        self._path = path
        self._header = header.encode()
        self._most_bytes = most_bytes // (NUM_OLDER + 1)
        try:
            self._begin()
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            limit = f"cannot be written: {reason}"
            raise InvalidOptionError("record_trace", str(path), limit) from None

    def write(self, line: str) -> None:
        """A line more, in a new file where this one is full. Raises OSError."""
        content = line.encode()
        if self._size + len(content) > self._most_bytes and self._size > len(self._header):
            self.close()
            self._begin()
        self._append(content)

    def close(self) -> None:
        os.close(self._file)

    def _begin(self) -> None:
        if self._path.is_file() and _has_rows(self._path):
            self._age()
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_TRUNC
        self._file = os.open(self._path, flags, 0o600)
        self._size = 0
        self._append(self._header)

    def _age(self) -> None:
        """Every file becomes older by one."""
        names = [self._path, *(_older(self._path, number) for number in range(1, NUM_OLDER + 1))]
        for newer, older in reversed(list(pairwise(names))):
            if newer.exists():
                newer.replace(older)

    def _append(self, content: bytes) -> None:
        written = os.write(self._file, content)
        self._size += written
        if written < len(content):
            raise OSError("the disk is full")


def _older(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.{number}")


def _has_rows(path: Path) -> bool:
    """There is something behind the header."""
    with path.open("rb") as file:
        return len(list(islice(file, 2))) == 2
