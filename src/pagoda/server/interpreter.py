"""The Python interpreter of a server, set up so that it keeps no stream waiting.

What runs here is a loop that writes to many clients and a thread that steps the engine, which share
the interpreter's lock with whatever a request makes them do.
"""

from __future__ import annotations

import gc
import sys

_COLLECT_AFTER = 5000
"""Containers made and not freed: to look at so many takes half a millisecond."""
_SWITCH_S = 0.001
"""A step of the engine takes the lock several times, and may wait this long for it each time."""


def set_up_interpreter() -> None:
    """Call it once everything is loaded, before the first request.

    What has been loaded stays, so the garbage collector need not go through it again, which takes
    0.15 s. It looks at what requests make, but not for each few hundred objects of a large body.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_COLLECT_AFTER, 10, 10)
    sys.setswitchinterval(_SWITCH_S)
