"""Lines in the log for what takes long, and mostly does so only the first time."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

logger = logging.getLogger("pagoda")

T = TypeVar("T")

PATIENCE_S = 1.0
_INTERVAL_S = 15.0


@contextmanager
def told_if_slow(message: str, after_s: float = PATIENCE_S) -> Iterator[Callable[[str], None]]:
    """Log `message` if the block has not ended after so many seconds, and now and then that it
    goes on. Yields what hears which part of it has begun, which these lines then name."""
    has_ended = threading.Event()
    part = ""

    def begin(name: str) -> None:
        nonlocal part
        part = f" ({name})"

    def tell() -> None:
        if has_ended.wait(after_s):
            return
        logger.info(message)
        began = time.monotonic() - after_s
        while not has_ended.wait(_INTERVAL_S):
            logger.info("… still at it, for %.0f s now%s", time.monotonic() - began, part)

    threading.Thread(target=tell, daemon=True).start()
    try:
        yield begin
    finally:
        has_ended.set()


def counted(begin: Callable[[str], None], what: str, items: Iterable[T], total: int) -> Iterator[T]:
    """The items, while `begin` hears of each which of `total` it is."""
    for number, item in enumerate(items, 1):
        begin(f"{what} {number} of {total}")
        yield item
