"""What this process may take of its machine: memory for the KV cache, and cores."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

import psutil

from pagoda.sizing.cache_size import CacheSize
from pagoda.sizing.capacity import format_gib

_CONTROL_GROUP = Path("/sys/fs/cgroup")


def require_memory(size_bytes: int, asked: CacheSize) -> None:
    """Raises `CapacityError` if the machine does not have the memory that the cache takes."""
    total = int(psutil.virtual_memory().total)
    if size_bytes > total:
        reason = f"more than this machine's memory of {format_gib(total)} GiB"
        raise asked.refused(size_bytes, reason)


def free_memory_bytes() -> int:
    """What the machine has free, or where that is less the container or this process."""
    free = int(psutil.virtual_memory().available)
    limit, used = _read("memory.max"), _read("memory.current")
    if limit is not None and used is not None:
        # Files that were read, weights say, stay in memory until somebody needs the room.
        free = min(free, max(limit - used + _reclaimable(), 0))
    return min(free, _addressable_bytes())


def _addressable_bytes() -> int:
    """What `ulimit -v` leaves this process."""
    most, _ = resource.getrlimit(resource.RLIMIT_AS)
    if most == resource.RLIM_INFINITY:
        return sys.maxsize
    return max(0, most - int(psutil.Process().memory_info().vms))


def granted_cores() -> float | None:
    """Cores that the container grants the time of (control group, version 2); None: all."""
    try:
        quota, period = (_CONTROL_GROUP / "cpu.max").read_text().split()
        return int(quota) / int(period)
    except (OSError, ValueError):
        return None


def _reclaimable() -> int:
    try:
        text = (_CONTROL_GROUP / "memory.stat").read_text()
    except OSError:
        return 0
    figures = dict(line.split() for line in text.splitlines())
    return int(figures.get("inactive_file", 0))


def _read(name: str) -> int | None:
    """A figure of the control group (version 2) this process is in; None if it has no bound."""
    try:
        return int((_CONTROL_GROUP / name).read_text())
    except (OSError, ValueError):
        return None
