"""Which numbers of a matrix share a scale."""

from __future__ import annotations

from typing import NamedTuple


class Span(NamedTuple):
    """So many rows and columns, the last ones fewer where they do not go into a matrix."""

    num_rows: int | None
    """None: all of them."""
    num_columns: int | None
    """None: all of them."""

    def within(self, shape: tuple[int, int]) -> tuple[int, int]:
        """Rows and columns that share a scale in such a matrix, none beyond its own."""
        rows, columns = shape
        return min(self.num_rows or rows, rows), min(self.num_columns or columns, columns)

    def grid(self, shape: tuple[int, int]) -> tuple[int, int]:
        """How many scales there are along the rows and along the columns of such a matrix."""
        num_rows, num_columns = self.within(shape)
        return -(-shape[0] // num_rows), -(-shape[1] // num_columns)


WHOLE = Span(None, None)
ROW = Span(1, None)
