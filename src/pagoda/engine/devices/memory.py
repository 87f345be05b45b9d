"""What memory this process may take of its machine."""

from __future__ import annotations

import resource
import sys

import psutil

from pagoda.engine.devices import control_group
from pagoda.sizing.cache_size import CacheSize
from pagoda.sizing.capacity import format_gib


def require_memory(size_bytes: int, asked: CacheSize) -> None:
    """Raises `CapacityError` if the machine does not have the memory that the cache takes."""
    total = int(psutil.virtual_memory().total)
    if size_bytes > total:
        reason = f"more than this machine's memory of {format_gib(total)} GiB"
        raise asked.refused(size_bytes, reason)


def free_memory_bytes() -> int:
    """What the machine has free, or where that is less the control group or this process."""
    free = int(psutil.virtual_memory().available)
    granted = control_group.free_bytes()
    return min(free, _addressable_bytes(), free if granted is None else granted)


def _addressable_bytes() -> int:
    """What `ulimit -v` leaves this process."""
    most, _ = resource.getrlimit(resource.RLIMIT_AS)
    if most == resource.RLIM_INFINITY:
        return sys.maxsize
    return max(0, most - int(psutil.Process().memory_info().vms))
