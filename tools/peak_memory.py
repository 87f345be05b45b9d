"""What a command takes: seconds, core-seconds, and the most memory of all its processes at once.

    python tools/peak_memory.py make test

Memory is PSS, sampled once a second: pages that several processes share count once.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from contextlib import suppress

import psutil

INTERVAL_S = 1.0


def pss_bytes(root: psutil.Process) -> int:
    """Of a process and all that it has started and that still run."""
    total = 0
    with suppress(psutil.NoSuchProcess):
        for process in (root, *root.children(recursive=True)):
            with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                total += process.memory_full_info().pss
    return total


def main(command: list[str]) -> int:
    """Run it; returns its exit code."""
    begun, peak = time.monotonic(), 0
    running = subprocess.Popen(command)
    root = psutil.Process(running.pid)
    while True:
        try:
            running.wait(INTERVAL_S)
            break
        except subprocess.TimeoutExpired:
            peak = max(peak, pss_bytes(root))
    seconds, used = time.monotonic() - begun, resource.getrusage(resource.RUSAGE_CHILDREN)
    print(
        f"{seconds:.0f} s, {used.ru_utime + used.ru_stime:.0f} core-seconds, "
        f"{peak / 2**30:.2f} GiB at most"
    )
    return running.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
