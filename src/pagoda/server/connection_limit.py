"""How many connections a server has at a time."""

from __future__ import annotations

import logging
import resource
import sys
import time

from pagoda.errors import InvalidOptionError

logger = logging.getLogger("pagoda")

_MOST = 4096
"""By default."""
_OTHER_FILES = 128
"""What a process opens beside its connections: the model's files, libraries, the log."""
_SILENCE_S = 10.0
"""Between two lines of the log about clients that were turned away."""


def most_connections(asked: int | None) -> int:
    """So many as are `asked` for; without that 4,096, or what the limit on open files leaves.

    Raises `InvalidOptionError` for more than that leaves.
    """
    num_files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if num_files == resource.RLIM_INFINITY:
        num_files = sys.maxsize
    left = max(1, num_files - _OTHER_FILES)
    if asked is None:
        return min(_MOST, left)
    if asked > left:
        limit = f"at most {left}: the process may open {num_files} files (ulimit -n)"
        raise InvalidOptionError("max_num_connections", asked, limit)
    return asked


def warn_of_few(most: int, max_num_seqs: int) -> None:
    """Say in the log where the limit on open files leaves fewer connections than sequences may run
    at a time."""
    if most < max_num_seqs:
        logger.warning(
            "connections are limited to %d at a time, fewer than the %d sequences that may run: "
            "raise the limit on open files (ulimit -n)",
            most,
            max_num_seqs,
        )


class ConnectionLimit:
    """The most connections of a server, and what the log says of those that are too many."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._told_at: float | None = None

    def tell(self) -> None:
        """A client was turned away: say so in the log, but not for each of a crowd."""
        now = time.monotonic()
        if self._told_at is None or now >= self._told_at + _SILENCE_S:
            self._told_at = now
            logger.warning("clients are turned away: %d connections are open", self.most)
