"""Who asks, as URLs have it: for nobody to see."""

from __future__ import annotations

import re

_CREDENTIALS = re.compile(r"(?<=://).*@", re.DOTALL)


def without_credentials(text: str) -> str:
    """A URL, or an option with one, for people: whatever stands before the host is left out."""
    return _CREDENTIALS.sub("…@", text)
