"""A line in the log for what is slow the first time on a machine, and quick ever after."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

logger = logging.getLogger("pagoda")

_PATIENCE_S = 1.0


@contextmanager
def told_if_slow(message: str, after_s: float = _PATIENCE_S) -> Iterator[None]:
    """Log `message` once if the block has not ended after so many seconds."""
    timer = threading.Timer(after_s, logger.info, (message,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
