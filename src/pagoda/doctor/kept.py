"""What an engine tells of which tokens of a sequence stay."""

from __future__ import annotations

import re
from dataclasses import dataclass

EVERY_TOKEN = "full"
_IN_PART = re.compile(r"(?:window:|streaming:sinks=([0-9]{1,9}),window=)([0-9]{1,9})")


@dataclass(frozen=True, slots=True)
class Kept:
    """What stays of each sequence."""

    name: str
    """As the engine's flag calls it."""
    num_tokens: int | None
    """First and last ones; None: all."""


def kept_of(label: str) -> Kept | None:
    """What a label says; None: nothing, or nothing that makes sense."""
    if label == EVERY_TOKEN:
        return Kept(label, None)
    found = _IN_PART.fullmatch(label)
    if found is None:
        return None
    sinks, window = (int(number or 0) for number in found.groups())
    return Kept(label, sinks + window) if window else None
