"""How long a server is watched, and how often."""

from __future__ import annotations

from dataclasses import dataclass

from pagoda.errors import InvalidOptionError

_LONGEST_INTERVAL_S, _LONGEST_S = 3600, 86400


@dataclass(frozen=True, slots=True)
class WatchOptions:
    """Seconds. Raises `InvalidOptionError` for what is out of range."""

    watch: float = 30.0
    interval: float = 1.0

    def __post_init__(self) -> None:
        if not 0.05 <= self.interval <= _LONGEST_INTERVAL_S:
            limit = f"must be between 0.05 and {_LONGEST_INTERVAL_S} seconds"
            raise InvalidOptionError("interval", self.interval, limit)
        if not self.interval <= self.watch <= _LONGEST_S:
            limit = f"must be between the interval, {self.interval}, and {_LONGEST_S} seconds"
            raise InvalidOptionError("watch", self.watch, limit)
