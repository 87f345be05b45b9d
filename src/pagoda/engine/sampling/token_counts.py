"""The distinct tokens of a list that grows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


class TokenCounts:
    """How often each token stands in `start` and in `growing`, which may grow between looks.

    Each token is counted once, so a look costs what is new and the distinct tokens, however long
    the lists are.
    """

    def __init__(self, growing: Sequence[int], start: Sequence[int] = ()) -> None:
        self._growing = growing
        self._num_read = 0
        self._counts = Counter(start)

    def token_ids(self) -> NDArray[np.int64]:
        """[n], each once."""
        self._read()
        return np.fromiter(self._counts, np.int64, len(self._counts))

    def counts(self) -> NDArray[np.int64]:
        """[n], in the order of `token_ids`."""
        self._read()
        return np.fromiter(self._counts.values(), np.int64, len(self._counts))

    def _read(self) -> None:
        if self._num_read < len(self._growing):
            self._counts.update(self._growing[self._num_read :])
            self._num_read = len(self._growing)
