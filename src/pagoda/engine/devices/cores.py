"""The cores of this machine."""

from __future__ import annotations

import math
import os

from pagoda.engine.devices.control_group import granted_cores


def num_usable_cores() -> int:
    """Cores that this process may use, of which its container may grant less than there are."""
    if not hasattr(os, "sched_getaffinity"):  # Linux alone can tell
        return os.cpu_count() or 1
    granted = granted_cores()
    present = len(os.sched_getaffinity(0))
    return present if granted is None else max(1, min(present, math.ceil(granted)))
