"""The formats that a file of requests may have, by their names: a format is a file and a row."""

from __future__ import annotations

from collections.abc import Iterable

from pagoda.errors import InvalidOptionError
from pagoda.replay.fields import Row
from pagoda.replay.formats.form import TraceForm
from pagoda.replay.formats.mooncake import MOONCAKE
from pagoda.replay.formats.pagoda_rows import PAGODA
from pagoda.replay.formats.request_log import REQUEST_LOG, WORD_LOG

FORMATS: dict[str, TraceForm] = {
    "mooncake": MOONCAKE,
    "pagoda": PAGODA,
    "requests": REQUEST_LOG,
    "requests-by-words": WORD_LOG,
}


def find_form(name: str | None, rows: Iterable[Row], trace: str) -> tuple[TraceForm, Row]:
    """The form of that name, or the first that knows one of the rows; and that row.

    Raises `InvalidOptionError` for a name that is not in `FORMATS`, and where no row is known.
    """
    if name is not None and name not in FORMATS:
        raise InvalidOptionError("format", name, f"one of {', '.join(FORMATS)}")
    forms = list(FORMATS.values()) if name is None else [FORMATS[name]]
    for row in rows:
        for form in forms:
            if form.knows(row):
                return form, row
    known = ", ".join(FORMATS) if name is None else name
    raise InvalidOptionError("trace", trace, f"has no row of a known format ({known})")
