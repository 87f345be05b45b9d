"""Layers that keep the dtype of the activations, as `--kv-cache-dtype-skip-layers` names them.

    0    29           by their numbers
    0-3               from the first to the last of them: Pagoda's own
    sliding_window    all that have a sliding window

All but ranges are vLLM's.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from pagoda.errors import InvalidOptionError

FIELD = "kv_cache_dtype_skip_layers"
SLIDING_WINDOW = "sliding_window"
_LIMIT = f"a layer's number, a range like 0-3, or {SLIDING_WINDOW}"
_NUMBERS = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")


@dataclass(frozen=True, slots=True)
class SkippedLayers:
    """Layers of whichever model."""

    numbers: tuple[range, ...] = ()
    windowed: bool = False
    """All that have a sliding window."""

    @classmethod
    def read(cls, named: Sequence[int | str]) -> SkippedLayers:
        """From what names them, each a number or a text as above; else `InvalidOptionError`."""
        if isinstance(named, str) or not isinstance(named, Sequence):
            raise InvalidOptionError(FIELD, named, f"must be a list, each {_LIMIT}")
        numbers = tuple(_range(each) for each in named if each != SLIDING_WINDOW)
        return cls(numbers, SLIDING_WINDOW in named)

    def of(self, windowed: Sequence[bool]) -> frozenset[int]:
        """Their numbers in a model of which `windowed` tells each layer that has a sliding window.

        Raises `InvalidOptionError` for a layer that the model does not have.
        """
        found = {number for number, each in enumerate(windowed) if each and self.windowed}
        for each in self.numbers:
            if each[-1] >= len(windowed):
                limit = f"the model has layers 0 to {len(windowed) - 1}"
                raise InvalidOptionError(FIELD, each[-1], limit)
            found.update(each)
        return frozenset(found)


def _range(named: int | str) -> range:
    """A range of one or more."""
    matched = None if isinstance(named, bool) else _NUMBERS.fullmatch(str(named).strip())
    if matched is None:
        raise InvalidOptionError(FIELD, named, _LIMIT)
    first, last = int(matched[1]), int(matched[2] or matched[1])
    if last < first:
        raise InvalidOptionError(FIELD, named, f"ends before it begins; {_LIMIT}")
    return range(first, last + 1)
