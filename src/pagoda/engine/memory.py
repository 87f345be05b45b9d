"""How much memory this process may take for the KV cache."""

from __future__ import annotations

from pathlib import Path

import psutil

from pagoda.engine.options import EngineOptions
from pagoda.planning.capacity import GIB

DEFAULT_SHARE = 0.5
DEFAULT_CAP_BYTES = 4 * GIB
"""A CPU's memory is shared with everything else on the machine: nobody expects half a server's
memory to go to a model that was merely tried out."""

_CONTROL_GROUP = Path("/sys/fs/cgroup")


def kv_cache_bytes(options: EngineOptions) -> int:
    """Memory for the KV cache, from the options and what is free now that weights are loaded."""
    if options.kv_cache_memory_bytes is not None:
        return options.kv_cache_memory_bytes
    free = free_memory_bytes()
    if options.gpu_memory_utilization is not None:
        return int(free * options.gpu_memory_utilization)
    return min(int(free * DEFAULT_SHARE), DEFAULT_CAP_BYTES)


def free_memory_bytes() -> int:
    """What the machine has free, or the container where that is less."""
    free = int(psutil.virtual_memory().available)
    limit, used = _read("memory.max"), _read("memory.current")
    if limit is not None and used is not None:
        free = min(free, max(limit - used, 0))
    return free


def _read(name: str) -> int | None:
    """A figure of the control group (version 2) this process is in; None if it has no bound."""
    try:
        return int((_CONTROL_GROUP / name).read_text())
    except (OSError, ValueError):
        return None
