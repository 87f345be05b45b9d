"""The distinct tokens of a list that grows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


class TokenCounts:
    """How often each token stands in `start` and in `growing`, which may grow between looks.

    A look costs the tokens that are new since the last one, however long the lists are.
    """

    def __init__(self, growing: Sequence[int], start: Sequence[int] = ()) -> None:
        self._growing = growing
        self._num_read = 0
        # A token has a place in both arrays; places that are free have a count of 0.
        self._ids, self._counts = np.unique(np.array(start, np.int64), return_counts=True)
        self._places = {token_id: place for place, token_id in enumerate(self._ids.tolist())}

    def look(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Each token once, and how often it stands there: [n] and [n], until the next look."""
        for token_id in self._growing[self._num_read :]:
            place = self._places.setdefault(token_id, len(self._places))
            if place == len(self._ids):
                free = np.zeros(max(16, place), np.int64)
                self._ids = np.concatenate([self._ids, free])
                self._counts = np.concatenate([self._counts, free])
            self._ids[place] = token_id
            self._counts[place] += 1
        self._num_read = len(self._growing)
        return self._ids[: len(self._places)], self._counts[: len(self._places)]
