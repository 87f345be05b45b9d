"""What tenants have had since a server first kept a file of it, over all its starts.

file        totals of earlier starts
+ engine    what it has counted since this one
= totals    written back every few seconds, and at the end
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pagoda.engine.usage import TOTALS
from pagoda.errors import InvalidOptionError
from pagoda.tiers.file_lock import FileLock, InUseError

if TYPE_CHECKING:
    from pagoda.engine.async_engine import AsyncEngine

logger = logging.getLogger("pagoda")

_MOST = 2**63
INTERVAL_S = 10.0
"""What a crash may lose."""

Totals = dict[str, dict[str, float]]


def require_usable(path: Path) -> None:
    """Raises `InvalidOptionError` naming `usage_file` for one that cannot be read or written, or
    that another server keeps."""
    with _refusals(path):
        _lock_of(path.resolve()).require_free()
        _read(path)
        new = _new_file(path.resolve())
        os.close(os.open(new, os.O_WRONLY | os.O_CREAT, 0o600))
        new.unlink()


class UsageLedger:
    """Totals by tenant, in a file that is this server's alone until `close`. Each write replaces
    the file whole, or leaves the last one."""

    def __init__(self, engine: AsyncEngine, path: Path | None) -> None:
        """Without a `path` totals begin with the engine.

        Raises `InvalidOptionError` naming `usage_file` for one that cannot be read or locked, or
        that another server keeps. What cannot be written is logged, and tried again.
        """
        self._engine = engine
        self._path: Path | None = None
        """Of the file while there is one to write."""
        self._writing = threading.Lock()
        self._before: Totals = {}
        self.since = time.time()
        """When counting began, in seconds of the clock on the wall."""
        if path is not None:
            with _refusals(path):
                self._open(path.resolve())

    def _open(self, path: Path) -> None:
        """Go on from what the file has; the lock is not kept where that fails."""
        self._lock = _lock_of(path)
        self._lock.take()
        try:
            kept = _read(path)
            if kept is not None:
                self.since, self._before = kept
            self._path = path
            self.save()
        except BaseException:
            self._lock.release()
            raise

    def totals(self) -> Totals:
        """Of every tenant that ever asked, by the names in `TOTALS`."""
        now = {tenant: usage.totals() for tenant, usage in self._engine.usage().items()}
        nothing = dict.fromkeys(TOTALS, 0)
        return {
            tenant: {
                name: self._before.get(tenant, nothing)[name] + now.get(tenant, nothing)[name]
                for name in TOTALS
            }
            for tenant in [*self._before, *(each for each in now if each not in self._before)]
        }

    async def run(self) -> None:
        """Write every few seconds, until cancelled."""
        while True:
            await asyncio.sleep(INTERVAL_S)
            await asyncio.to_thread(self.save)

    def save(self) -> None:
        """Write the totals, where there is a file. What fails is logged, and tried again."""
        path = self._path
        if path is None:
            return
        try:
            self._write(path)
        except OSError as error:
            logger.warning("usage_file %s cannot be written: %s", path, error)

    def close(self) -> None:
        """Write the totals for the last time, and let another server have the file."""
        self.save()
        with self._writing:
            if self._path is not None:
                self._path = None
                self._lock.release()

    def _write(self, path: Path) -> None:
        new = _new_file(path)
        with self._writing:
            if self._path is None:  # closed while this waited
                return
            new.unlink(missing_ok=True)
            number = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)  # names of tenants
            with open(number, "w", encoding="utf-8") as file:
                json.dump({"since": self.since, "tenants": self.totals()}, file)
                file.flush()
                os.fsync(file.fileno())
            new.replace(path)


@contextmanager
def _refusals(path: Path) -> Iterator[None]:
    """What goes wrong with the file in the block, told as `InvalidOptionError`."""
    try:
        yield
    except InUseError as error:
        limit = f"is in use by {error}: give each server its own file"
        raise InvalidOptionError("usage_file", str(path), limit) from None
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InvalidOptionError("usage_file", str(path), f"cannot be kept: {reason}") from None


def _lock_of(path: Path) -> FileLock:
    return FileLock(path.with_name(f"{path.name}.lock"))


def _new_file(path: Path) -> Path:
    """Written whole before it takes the place of the last one."""
    return path.with_name(f"{path.name}.new")


def _read(path: Path) -> tuple[float, Totals] | None:
    """Since when it counts, and what; None: there is none. Raises OSError and ValueError."""
    if not path.exists():
        return None
    kept = json.loads(path.read_text("utf-8"))
    if not isinstance(kept, dict) or not _is_number(kept.get("since")):
        raise ValueError("it does not say since when it counts")
    tenants = kept.get("tenants")
    if not isinstance(tenants, dict) or not all(map(_is_totals, tenants.values())):
        raise ValueError(f"each of its tenants must have numbers of {', '.join(TOTALS)}")
    nothing = dict.fromkeys(TOTALS, 0)
    return kept["since"], {tenant: nothing | totals for tenant, totals in tenants.items()}


def _is_totals(value: Any) -> bool:
    """Whole numbers of tokens, and seconds; a name that is not there counts as 0."""
    return isinstance(value, dict) and all(
        name in TOTALS and _is_number(number) and (isinstance(number, int) or "seconds" in name)
        for name, number in value.items()
    )


def _is_number(value: Any) -> bool:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and 0 <= value < _MOST
