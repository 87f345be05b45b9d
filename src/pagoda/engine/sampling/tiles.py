"""Tiles: as many rows of logits as are looked at together, so that temporaries stay small."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray


def tiles(num_rows: int, vocab_size: int, num_elements: int) -> Iterator[slice]:
    """Neighbouring rows, some `num_elements` logits each time; at least one row."""
    height = max(1, num_elements // vocab_size)
    for first in range(0, num_rows, height):
        yield slice(first, min(first + height, num_rows))


def as_slice(indices: Sequence[int] | NDArray[np.int64]) -> slice | None:
    """The slice of these ascending indices, if they are neighbours: logits then need no copy."""
    first, last = int(indices[0]), int(indices[-1])
    return slice(first, last + 1) if last - first + 1 == len(indices) else None
