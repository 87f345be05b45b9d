"""The formats that a file of requests may have, by their names: a format is a file and a row."""

from __future__ import annotations

from collections.abc import Iterable

from pagoda.errors import InvalidOptionError
from pagoda.replay.fields import Row
from pagoda.replay.formats.format import TraceFormat
from pagoda.replay.formats.mooncake import MOONCAKE
from pagoda.replay.formats.pagoda_rows import PAGODA
from pagoda.replay.formats.request_log import REQUEST_LOG, WORD_LOG

FORMATS: dict[str, TraceFormat] = {
    "mooncake": MOONCAKE,
    "pagoda": PAGODA,
    "requests": REQUEST_LOG,
    "requests-by-words": WORD_LOG,
}


def find_format(name: str | None, rows: Iterable[Row], trace: str) -> tuple[TraceFormat, Row]:
    """The format of that name, or the first that knows one of the rows; and that row.

    Raises `InvalidOptionError` for a name that is not in `FORMATS`, and where no row is known.
    """
    if name is not None and name not in FORMATS:
        raise InvalidOptionError("format", name, f"one of {', '.join(FORMATS)}")
    formats = list(FORMATS.values()) if name is None else [FORMATS[name]]
    for row in rows:
        for each in formats:
            if each.knows(row):
                return each, row
    known = ", ".join(FORMATS) if name is None else name
    raise InvalidOptionError("trace", trace, f"has no row of a known format ({known})")
