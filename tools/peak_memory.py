"""What a command and all that it starts take of memory at most, shared pages counted once.

    python tools/peak_memory.py make test

Once a second it adds up the proportional set sizes (PSS) of the command's process and of all below
it, and says at the end when the sum was highest and which processes it was made of. Linux alone.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import psutil

SECONDS = 1.0


def pss_bytes(process: psutil.Process) -> int:
    """0 of a process that is gone."""
    try:
        lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


def sample(root: psutil.Process) -> list[tuple[int, str]]:
    """Bytes and command of each process, the largest first."""
    found = []
    for process in [root, *root.children(recursive=True)]:
        try:
            found.append((pss_bytes(process), " ".join(" ".join(process.cmdline()).split())[:100]))
        except psutil.NoSuchProcess:
            continue
    return sorted(found, reverse=True)


def main() -> int:
    began = time.monotonic()
    command = subprocess.Popen(sys.argv[1:])
    root, highest, at = psutil.Process(command.pid), [(0, "")], 0.0
    while command.poll() is None:
        try:
            found = sample(root)
        except psutil.NoSuchProcess:
            break
        if sum(size for size, _ in found) > sum(size for size, _ in highest):
            highest, at = found, time.monotonic() - began
        time.sleep(SECONDS)
    total = sum(size for size, _ in highest)
    print(f"{total / 2**30:.2f} GiB at most, after {at:.0f} of {time.monotonic() - began:.0f} s:")
    for size, name in highest:
        print(f"  {size / 2**20:7.0f} MiB  {name}")
    return command.wait()


if __name__ == "__main__":
    sys.exit(main())
