"""A trace in a file of JSON lines, .gz too, read a line at a time."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import IO, cast

from pagoda.errors import InvalidOptionError, InvalidRequestError, RefusedError
from pagoda.replay.faults import Faults
from pagoda.replay.fields import Row
from pagoda.replay.formats import find_format
from pagoda.replay.formats.format import RowReader
from pagoda.replay.recorded import RecordedSetting
from pagoda.replay.trace import TracedRequest

_ROWS_TO_KNOW = 100
"""Of so many rows, one must tell the format."""
_GZIP = b"\x1f\x8b"


class TraceFile:
    """Requests of a file; see `Trace`. What it holds of the file does not grow with it."""

    num_requests: int | None = None

    def __init__(self, path: Path, format_name: str | None = None) -> None:
        """`format_name`: one of `FORMATS`; None: found by the first rows.

        Raises `InvalidOptionError` for a file that cannot be read or has no known row.
        """
        self.name = path.name
        self.faults = Faults()
        self._path = path
        try:
            rows = (row for _, row in self._rows(Faults(), grows=True))
            first = islice(rows, _ROWS_TO_KNOW)
            self._format, self._first_row = find_format(format_name, first, str(path))
            reader = self._format.reader(self._first_row)
        except InvalidRequestError as error:
            raise InvalidOptionError("trace", str(path), str(error)) from error
        self.unit_size: int = reader.unit_size
        self.recorded: RecordedSetting | None = reader.recorded

    def __iter__(self) -> Iterator[TracedRequest]:
        self.faults = Faults()
        reader = self._format.reader(self._first_row)
        before_s = 0.0
        for request in reader.in_order(self._requests(reader, self.faults)):
            if request.arrival_step is None and request.arrival_s < before_s:
                request = replace(request, arrival_s=before_s)  # times never go back
            before_s = request.arrival_s
            yield request

    def _requests(self, reader: RowReader, faults: Faults) -> Iterator[TracedRequest]:
        for number, row in self._rows(faults, grows=self._format.grows):
            try:
                request = reader.read(row)
            except RefusedError as error:
                faults.add(number, error)
            else:
                if request is not None:
                    yield request

    def _rows(self, faults: Faults, *, grows: bool) -> Iterator[tuple[int, Row]]:
        """Each line that is a JSON object, with its number, counted from 1."""
        for number, line in enumerate(self._lines(), start=1):
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                if not line.isspace() and not (grows and not line.endswith(b"\n")):
                    shown = line.decode("utf-8", "replace").strip()
                    faults.add(number, InvalidRequestError("row", shown, "must be JSON"))
                continue
            if isinstance(row, dict):
                yield number, row
            else:
                faults.add(number, InvalidRequestError("row", row, "must be a JSON object"))

    def _lines(self) -> Iterator[bytes]:
        try:
            with self._open() as lines:
                yield from lines
        except (OSError, EOFError, zlib.error) as error:
            reason = getattr(error, "strerror", None) or str(error)
            limit = f"cannot be read: {reason}"
            raise InvalidOptionError("trace", str(self._path), limit) from error

    def _open(self) -> IO[bytes]:
        with self._path.open("rb") as file:
            is_packed = file.read(2) == _GZIP
        if is_packed:
            return cast(IO[bytes], gzip.open(self._path, "rb"))
        return self._path.open("rb")
