"""What each tier is worth alone: its round trip, and the bytes that it stores and loads a second.

    python benchmarks/tiers.py [--tiers host disk redis s3 objects] [--added-ms 0 5 50]
        [--frames 256] [--frame-bytes 368640] [--repeat 5] [--timeout 60] [--json]

    host     main memory
    disk     a folder where the machine keeps temporary files, or in --folder; what is loaded comes
             from the system's cache of files, as it does where that is large enough
    redis    redis-server on this machine, with a connection for each 4 MiB under way
    s3       moto's server, an S3 in Python for tests: a real one is several times as fast
    objects  the same code with obstore's files in a folder in place of a server

`--added-ms` holds the answers of redis and s3 up by so much, in a process between. Frames have the
size of a block of 16 tokens of the default model in bfloat16; random bytes. Medians of `--repeat`,
after one that does not count; core-seconds are those of this process, per GB that is loaded. Prints
a table, then one JSON line; with `--json` that line alone.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median

from pagoda.tiers.disk import DiskTier
from pagoda.tiers.host import HostTier
from pagoda.tiers.redis import RedisTier
from pagoda.tiers.s3 import S3Tier
from pagoda.tiers.s3_address import S3Address
from pagoda.tiers.tier import Tier

# In place of this folder, where `tiers` would be this file.
sys.path[0] = str(Path(__file__).parent.parent / "tests")

from tiers.faults import Fault, Line  # noqa: E402
from tiers.stores import BUCKET, KEYS, RedisServer, S3Server  # noqa: E402

FRAME_BYTES = 16 * 30 * 2 * 3 * 64 * 2
"""16 tokens, 30 layers, keys and values, 3 heads of 64 numbers, 2 bytes each."""
NUM_ROUND_TRIPS = 20
FAR = ("redis", "s3")
"""Tiers that are on the other side of a line."""


@dataclass(frozen=True)
class Measured:
    """One tier behind one line."""

    tier: str
    added_ms: float
    round_trip_ms: float
    """Of the question whether one frame is there."""
    first_frame_ms: float
    """Of loading all of them."""
    load_bytes_per_s: float
    store_bytes_per_s: float
    load_core_s_per_gb: float
    """Of this process, which is what an engine beside it would miss."""


@dataclass(frozen=True)
class Setting:
    """What is measured with."""

    num_frames: int
    frame_bytes: int
    repeat: int
    timeout_s: float
    folder: Path

    @property
    def num_bytes(self) -> int:
        """Of all frames."""
        return self.num_frames * self.frame_bytes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tiers", nargs="+", choices=list(OPENS), default=list(OPENS))
    parser.add_argument("--added-ms", type=float, nargs="+", default=[0, 5, 50])
    parser.add_argument("--frames", type=int, default=256)
    parser.add_argument("--frame-bytes", type=int, default=FRAME_BYTES)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--timeout", type=float, default=60.0, metavar="SECONDS")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    rows = []
    if not args.json:
        print(
            f"{'tier':8} {'added ms':>9} {'round trip ms':>14} {'first frame ms':>15} "
            f"{'load MB/s':>10} {'store MB/s':>11} {'core-s/GB':>10}"
        )
    with tempfile.TemporaryDirectory(prefix="pagoda-tiers-", dir=args.folder) as folder:
        setting = Setting(args.frames, args.frame_bytes, args.repeat, args.timeout, Path(folder))
        for name in args.tiers:
            for added_ms in args.added_ms if name in FAR else [0.0]:
                rows.append(measure(name, added_ms, setting))
                if not args.json:
                    print(row_of(rows[-1]), flush=True)
    print(
        json.dumps(
            {"benchmark": "tiers", "num_bytes": setting.num_bytes, "tiers": list(map(asdict, rows))}
        )
    )


def row_of(row: Measured) -> str:
    """A line of the table."""
    return (
        f"{row.tier:8} {row.added_ms:9g} {row.round_trip_ms:14.3f} {row.first_frame_ms:15.3f} "
        f"{row.load_bytes_per_s / 1e6:10,.0f} {row.store_bytes_per_s / 1e6:11,.0f} "
        f"{row.load_core_s_per_gb:10.2f}"
    )


def measure(name: str, added_ms: float, setting: Setting) -> Measured:
    """Store, ask for and load all frames, again and again under other names."""
    frame = os.urandom(setting.frame_bytes)
    stores_s, loads_s, firsts_s, cores_s = (list[float]() for _ in range(4))
    with OPENS[name](setting, added_ms / 1000) as tier:
        for turn in range(setting.repeat + 1):
            names = [f"{turn:016x}-{number:064x}" for number in range(setting.num_frames)]
            began = time.perf_counter()
            tier.store([(each, frame) for each in names], setting.timeout_s)
            stores_s.append(time.perf_counter() - began)
            began = time.process_time()
            first_s, load_s = time_load(tier, names, setting)
            cores_s.append(time.process_time() - began)
            firsts_s.append(first_s)
            loads_s.append(load_s)
            round_trips_s = [time_round_trip(tier, names[0]) for _ in range(NUM_ROUND_TRIPS)]
            tier.remove(names, setting.timeout_s)
    return Measured(
        tier=name,
        added_ms=added_ms,
        round_trip_ms=1000 * median(round_trips_s),
        first_frame_ms=1000 * median(firsts_s[1:]),
        load_bytes_per_s=setting.num_bytes / median(loads_s[1:]),
        store_bytes_per_s=setting.num_bytes / median(stores_s[1:]),
        load_core_s_per_gb=median(cores_s[1:]) / (setting.num_bytes / 1e9),
    )


def time_load(tier: Tier, names: list[str], setting: Setting) -> tuple[float, float]:
    """Seconds until the first frame was there, and until all were."""
    began, first_s, num_bytes = time.perf_counter(), 0.0, 0
    for frame in tier.load(names, setting.timeout_s):
        first_s = first_s or time.perf_counter() - began
        num_bytes += len(frame or b"")
    seconds = time.perf_counter() - began
    assert num_bytes == setting.num_bytes, f"{tier.kind} lost a frame"
    return first_s, seconds


def time_round_trip(tier: Tier, name: str) -> float:
    began = time.perf_counter()
    assert tier.holds([name], 10.0) == [True]
    return time.perf_counter() - began


# ---- tiers, and what they need -------------------------------------------------------------------


@contextmanager
def host(setting: Setting, added_s: float) -> Iterator[Tier]:
    yield HostTier(2 * setting.num_bytes)


@contextmanager
def disk(setting: Setting, added_s: float) -> Iterator[Tier]:
    tier = DiskTier(
        setting.folder / "disk", 3 * setting.num_bytes, max_frame_bytes=setting.frame_bytes
    )
    yield tier
    tier.close()


@contextmanager
def redis(setting: Setting, added_s: float) -> Iterator[Tier]:
    server = RedisServer(setting.folder)
    try:
        with far_away(server.port, added_s) as port:
            tier = RedisTier(f"redis://127.0.0.1:{port}", setting.frame_bytes)
            yield tier
            tier.close()
    finally:
        server.kill()


@contextmanager
def s3(setting: Setting, added_s: float) -> Iterator[Tier]:
    os.environ.update(KEYS)
    with elsewhere(serve_s3) as server_port, far_away(server_port, added_s) as port:
        address = S3Address.parse(f"s3://{BUCKET}/frames", endpoint=f"http://127.0.0.1:{port}")
        tier = S3Tier(address.open(), setting.frame_bytes)
        yield tier
        tier.close()


@contextmanager
def objects(setting: Setting, added_s: float) -> Iterator[Tier]:
    from obstore.store import LocalStore

    tier = S3Tier(LocalStore(setting.folder / "objects", mkdir=True), setting.frame_bytes)
    yield tier
    tier.close()


OPENS = {"host": host, "disk": disk, "redis": redis, "s3": s3, "objects": objects}


@contextmanager
def far_away(port: int, added_s: float) -> Iterator[int]:
    """The port by which answers of another one come so much later."""
    if not added_s:
        yield port
        return
    with elsewhere(serve_line, port, added_s) as line_port:
        yield line_port


def serve_line(said: Connection, port: int, added_s: float) -> None:
    line = Line(port)
    line.set(Fault(latency_s=added_s))
    said.send(line.port)
    said.recv()


def serve_s3(said: Connection) -> None:
    sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - the server's log of each request
    said.send(S3Server().port)
    said.recv()


@contextmanager
def elsewhere(serve: Callable[..., None], *args: object) -> Iterator[int]:
    """A port that a process of its own serves, so that it takes no turns from what is measured."""
    context = get_context("spawn")
    own, said = context.Pipe()
    with ExitStack() as ending:
        process = context.Process(target=serve, args=(said, *args), daemon=True)
        process.start()
        ending.callback(process.join)
        ending.callback(process.terminate)
        assert own.poll(30), "it did not begin"
        yield own.recv()


if __name__ == "__main__":
    main()
