"""A line in the log for what is slow the first time on a machine, and quick ever after."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

logger = logging.getLogger("pagoda")

_PATIENCE_S = 1.0
_INTERVAL_S = 15.0


@contextmanager
def told_if_slow(message: str, after_s: float = _PATIENCE_S) -> Iterator[None]:
    """Log `message` if the block has not ended after so many seconds, and now and then that it
    goes on."""
    has_ended = threading.Event()

    def tell() -> None:
        if has_ended.wait(after_s):
            return
        logger.info(message)
        began = time.monotonic() - after_s
        while not has_ended.wait(_INTERVAL_S):
            logger.info("… still at it, for %.0f s now", time.monotonic() - began)

    threading.Thread(target=tell, daemon=True).start()
    try:
        yield
    finally:
        has_ended.set()
