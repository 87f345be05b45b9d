"""Compiled grammars that are kept, because clients ask again and again with the same few."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Generic, NamedTuple, TypeVar

from pagoda.structured import StructuredOutputs

Grammar = TypeVar("Grammar")

MOST_GRAMMARS = 64
MOST_BYTES = 512 * 1024
"""Of the keys together, tenants' names and salts included. The memory of a grammar does not follow
from it: a regular expression of 30 characters can take a MiB, which llguidance's own limits
bound."""


class GrammarKey(NamedTuple):
    """Whose grammar it is, as for cached blocks: nobody gets another's in less time."""

    tenant: str
    cache_salt: str
    wanted: StructuredOutputs

    @property
    def num_bytes(self) -> int:
        """As UTF-8."""
        owner = f"{self.tenant}{self.cache_salt}".encode("utf-8", "surrogatepass")
        return len(owner) + self.wanted.num_bytes


class GrammarCache(Generic[Grammar]):
    """Forgets the grammar that was asked for longest ago, whosever it is. Any thread may ask it."""

    def __init__(self) -> None:
        self._kept: OrderedDict[GrammarKey, Grammar] = OrderedDict()
        self._num_bytes = 0
        self._lock = threading.Lock()

    def get(self, key: GrammarKey) -> Grammar | None:
        """The grammar, if it is kept."""
        with self._lock:
            found = self._kept.get(key)
            if found is not None:
                self._kept.move_to_end(key)
            return found

    def put(self, key: GrammarKey, grammar: Grammar) -> None:
        """Keep it, and forget others where that is too much."""
        with self._lock:
            if key not in self._kept:
                self._num_bytes += key.num_bytes
            self._kept[key] = grammar
            while len(self._kept) > MOST_GRAMMARS or self._num_bytes > MOST_BYTES:
                forgotten, _ = self._kept.popitem(last=False)
                self._num_bytes -= forgotten.num_bytes
