"""What a format of traces is: how it is told from others, and how its rows are read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from pagoda.replay.fields import Row
from pagoda.replay.recorded import RecordedSetting
from pagoda.replay.trace import TracedRequest


class RowReader(Protocol):
    """Reads the rows of one file."""

    @property
    def unit_size(self) -> int: ...

    @property
    def recorded(self) -> RecordedSetting | None:
        """What the file tells of its server."""
        ...

    def read(self, row: Row) -> TracedRequest | None:
        """The row's request, None for a row that is none. Raises `InvalidRequestError`."""
        ...

    def in_order(self, requests: Iterator[TracedRequest]) -> Iterator[TracedRequest]:
        """The same in their order of arrival, where rows are in another."""
        ...


@dataclass(frozen=True, slots=True)
class TraceFormat:
    """One format."""

    knows: Callable[[Row], bool]
    """Whether a row is one of its rows."""
    reader: Callable[[Row], RowReader]
    """From the first row that it knows. Raises `InvalidRequestError`."""
    grows: bool = False
    """A server may just be writing it: an unfinished last line is no fault."""


class PlainReader:
    """Rows in order of arrival, of a server that nobody knows."""

    recorded: RecordedSetting | None = None

    def __init__(self, unit_size: int) -> None:
        self.unit_size = unit_size

    def in_order(self, requests: Iterator[TracedRequest]) -> Iterator[TracedRequest]:
        return requests
