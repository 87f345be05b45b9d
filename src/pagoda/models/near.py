"""Which of the names that are covered comes near one that is not."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_LONGEST = 100
"""Characters that are compared; no architecture's name has more."""


def near_names(name: object, covered: Iterable[str]) -> str:
    """The end of a sentence that lists what is covered; empty where nothing comes near."""
    if type(name) is not str:
        return ""
    near = difflib.get_close_matches(name[:_LONGEST], list(covered), n=2, cutoff=0.7)
    return f"; near it {'are' if near[1:] else 'is'} {' and '.join(near)}" if near else ""
