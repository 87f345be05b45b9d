"""The log for machines: a JSON object a line."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime


class JSONLines(logging.Formatter):
    """`ts` in UTC, `level`, `logger`, `message`, and the fields that the record carries.

    A record's own fields are those of `extra={"fields": {…}}`; an exception is told in `exception`.
    """

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "ts": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)
