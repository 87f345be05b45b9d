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
        # A token has a slot in both arrays; slots that are free have a count of 0.
        self._ids, self._counts = np.unique(np.array(start, np.int64), return_counts=True)
        self._slots = {token_id: slot for slot, token_id in enumerate(self._ids.tolist())}

    def look(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Each token once, and how often it stands there: [n] and [n], until the next look."""
        for token_id in self._growing[self._num_read :]:
            slot = self._slots.setdefault(token_id, len(self._slots))
            if slot == len(self._ids):
                free = np.zeros(max(16, slot), np.int64)
                self._ids = np.concatenate([self._ids, free])
                self._counts = np.concatenate([self._counts, free])
            self._ids[slot] = token_id
            self._counts[slot] += 1
        self._num_read = len(self._growing)
        return self._ids[: len(self._slots)], self._counts[: len(self._slots)]
