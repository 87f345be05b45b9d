"""What became of the tokens that sequences looked for when they began."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from pagoda.cache.miss import Cause, Miss


class LookupCounts:
    """Tokens that were found, and those that were not by cause, of some lookups together."""

    def __init__(self) -> None:
        self.num_found = 0
        self._missed: Counter[Cause] = Counter()

    def add(self, num_found: int, miss: Miss) -> None:
        """One more lookup."""
        self.num_found += num_found
        self._missed.update(miss.num_tokens)

    def missed(self) -> Mapping[Cause, int]:
        """Tokens by every cause that there is."""
        return {cause: self._missed[cause] for cause in Cause}

    def copy(self) -> LookupCounts:
        """The same counts, which go on alone."""
        copy = LookupCounts()
        copy.num_found, copy._missed = self.num_found, self._missed.copy()
        return copy
