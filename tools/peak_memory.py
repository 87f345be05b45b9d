"""What a command and all that it starts take of memory at most, shared pages counted once.

    python tools/peak_memory.py make test

Once a second it adds up the proportional set sizes (PSS) of the command's process and of all below
it, and says at the end when the sum was highest and which processes it was made of. The kernel goes
through all of a process's pages to tell its PSS, so it is asked only where the resident set sizes,
which count shared pages several times, add up to more than the highest sum so far. Linux alone.
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


def sample(root: psutil.Process, above: int) -> list[tuple[int, str]]:
    """Bytes and command of each process, the largest first; empty if they are not `above`."""
    processes = [root, *root.children(recursive=True)]
    if sum(map(rss_bytes, processes)) <= above:
        return []
    return sorted(((pss_bytes(each), command_of(each)) for each in processes), reverse=True)


def rss_bytes(process: psutil.Process) -> int:
    """0 of a process that is gone."""
    try:
        return int(process.memory_info().rss)
    except psutil.NoSuchProcess:
        return 0


def command_of(process: psutil.Process) -> str:
    try:
        return " ".join(" ".join(process.cmdline()).split())[:100]
    except psutil.NoSuchProcess:
        return ""


def main() -> int:
    began = time.monotonic()
    command = subprocess.Popen(sys.argv[1:])
    root, highest, total, at = psutil.Process(command.pid), list[tuple[int, str]](), 0, 0.0
    while command.poll() is None:
        found = sample(root, above=total)
        if sum(size for size, _ in found) > total:
            highest, total = found, sum(size for size, _ in found)
            at = time.monotonic() - began
        time.sleep(SECONDS)
    print(f"{total / 2**30:.2f} GiB at most, after {at:.0f} of {time.monotonic() - began:.0f} s:")
    for size, name in highest:
        print(f"  {size / 2**20:7.0f} MiB  {name}")
    return command.wait()


if __name__ == "__main__":
    sys.exit(main())
