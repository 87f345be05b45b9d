"""Rows of a trace that could not be read: all counted, the first of them told."""

from __future__ import annotations

from pagoda.errors import RefusedError

MOST_EXAMPLES = 10


class Faults:
    """Grows while a trace is read."""

    def __init__(self) -> None:
        self.count = 0
        self.examples: list[str] = []
        """Line number, field, value and limit of the first `MOST_EXAMPLES`."""

    def add(self, line: int, error: RefusedError) -> None:
        """The row on that line, counted from 1, is left out for this reason."""
        self.count += 1
        if len(self.examples) < MOST_EXAMPLES:
            self.examples.append(f"line {line}: {error}")
