"""What tenants have had since a server first kept a file of it, over all its starts.

file        totals of earlier starts
+ engine    what it has counted since this one
= totals    written back every few seconds, and at the end
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pagoda.engine.usage import TOTALS
from pagoda.errors import InvalidOptionError

if TYPE_CHECKING:
    from pagoda.engine.async_engine import AsyncEngine

logger = logging.getLogger("pagoda")

INTERVAL_S = 10.0
"""What a crash may lose."""

Totals = dict[str, dict[str, float]]


class UsageLedger:
    """Totals by tenant. Each write replaces the file whole, or leaves the last one."""

    def __init__(self, engine: AsyncEngine, path: Path | None) -> None:
        """Without a `path` totals begin with the engine.

        Raises `InvalidOptionError` naming `usage_file` for one that cannot be read or written.
        """
        self._engine = engine
        self._path = path
        self._before: Totals = {}
        self.since = time.time()
        """When counting began, in seconds of the clock on the wall."""
        if path is None:
            return
        try:
            self._read(path)
            self._write(path)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            limit = f"cannot be kept: {reason}"
            raise InvalidOptionError("usage_file", str(path), limit) from None

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
        if self._path is None:
            return
        try:
            self._write(self._path)
        except OSError as error:
            logger.warning("usage_file %s cannot be written: %s", self._path, error.strerror)

    def _write(self, path: Path) -> None:
        new = path.with_name(f"{path.name}.new")
        with new.open("w", encoding="utf-8") as file:
            json.dump({"since": self.since, "tenants": self.totals()}, file)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)

    def _read(self, path: Path) -> None:
        if not path.exists():
            return
        kept = json.loads(path.read_text("utf-8"))
        if not isinstance(kept, dict) or not _is_number(kept.get("since")):
            raise ValueError("it does not say since when it counts")
        tenants = kept.get("tenants")
        if not isinstance(tenants, dict) or not all(map(_is_totals, tenants.values())):
            raise ValueError(f"each of its tenants must have {', '.join(TOTALS)}")
        self.since, self._before = kept["since"], tenants


def _is_totals(value: Any) -> bool:
    return isinstance(value, dict) and all(_is_number(value.get(name)) for name in TOTALS)


def _is_number(value: Any) -> bool:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and 0 <= value < math.inf
