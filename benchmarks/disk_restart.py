"""How soon a disk tier that is full is of use again after a restart.

    python benchmarks/disk_restart.py [--frames 100000] [--frame-bytes 4000] [--path FOLDER]
        [--drop-caches] [--json]

Frames are stored, then the folder is opened anew, in a process of its own: how long until a first
frame is loaded, until all are counted (only then can others be stored), and how much memory the
count takes. Files are in the page cache, unless --drop-caches asks the system to forget them, which
needs root.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from pagoda.tiers.disk import DiskTier

TIMEOUT_S = 3600.0
_BATCH = 256
NAME = "{:016x}-{:064x}"


def name_of(number: int) -> str:
    """Spread over all folders."""
    return NAME.format(1, number * 0x9E3779B97F4A7C15 << 190 & (1 << 256) - 1 | number)


def fill(path: Path, num_frames: int, frame_bytes: int) -> float:
    """Store so many frames; returns the seconds that it took."""
    tier = DiskTier(path, 2**50)
    frame, began = bytes(frame_bytes), time.perf_counter()
    for first in range(0, num_frames, _BATCH):
        numbers = range(first, min(first + _BATCH, num_frames))
        tier.store([(name_of(number), frame) for number in numbers], TIMEOUT_S)
    tier.close()
    return time.perf_counter() - began


def restart(path: Path) -> dict[str, float]:
    """Open a folder that is full."""
    process = psutil.Process()
    before, began, cpu = process.memory_info().rss, time.perf_counter(), time.process_time()
    tier = DiskTier(path, 2**50)
    [frame] = tier.load([name_of(7)], TIMEOUT_S)
    loaded = time.perf_counter() - began
    assert frame is not None
    assert tier.wait_until_counted(TIMEOUT_S)
    return {
        "first_load_s": loaded,
        "counted_s": time.perf_counter() - began,
        "counted_cpu_s": time.process_time() - cpu,
        "memory_bytes": process.memory_info().rss - before,
        "frames": tier.usage().num_frames,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--frames", type=int, default=100_000)
    parser.add_argument("--frame-bytes", type=int, default=4000)
    parser.add_argument("--path", type=Path)
    parser.add_argument("--drop-caches", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--restart", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.restart:
        print(json.dumps(restart(args.restart)))
        return
    with tempfile.TemporaryDirectory(dir=args.path) as folder:
        path = Path(folder) / "kv"
        seconds = fill(path, args.frames, args.frame_bytes)
        if args.drop_caches:
            subprocess.run(["sync"], check=True)
            Path("/proc/sys/vm/drop_caches").write_text("3")
        command = [sys.executable, __file__, "--restart", str(path)]
        told = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    told["stored_per_s"] = args.frames / seconds
    if args.json:
        print(json.dumps(told))
        return
    print(
        f"{told['frames']:,} frames, stored {told['stored_per_s']:,.0f} a second\n"
        f"first load after {told['first_load_s'] * 1000:.1f} ms, counted after "
        f"{told['counted_s']:.2f} s ({told['counted_cpu_s']:.2f} s of a core), "
        f"{told['memory_bytes'] / told['frames']:.0f} bytes of memory a frame"
    )


if __name__ == "__main__":
    main()
