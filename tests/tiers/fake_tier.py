"""A tier in memory that fails as it is told to, and workers that work when they are told to."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Sequence

from pagoda.tiers.frame import FrameFormat
from pagoda.tiers.frame_formats import FrameFormats
from pagoda.tiers.seal import Checksum, Seal, TenantSeal
from pagoda.tiers.tier import FrameBytes, TierEntry, TierError, TierFault, TierUsage
from pagoda.tiers.workers import Task

FAULTS = ("error", "panic", "wrong", "missing", "torn", "half")
"""Ways in which a call comes back. `hang` is one in which it does not."""


class FakeTier:
    """See `pagoda.tiers.tier.Tier`."""

    def __init__(self, kind: str = "fake", *, is_shared: bool = False) -> None:
        self.kind = kind
        self.is_shared = is_shared
        self.frames: dict[str, bytes] = {}
        self.fault: str | None = None
        """One of `FAULTS`, or `hang`, which ends with `released`."""
        self.released = threading.Event()
        self.is_closed = False
        self.calls: list[tuple[str, int]] = []
        """Each call and how many names it was for."""

    def holds(self, names: Sequence[str], timeout_s: float) -> list[bool]:
        self._begin("holds", len(names))
        return [name in self.frames for name in names]

    def load(self, names: Sequence[str], timeout_s: float) -> Iterator[FrameBytes | None]:
        self._begin("load", len(names))
        for number, name in enumerate(names):
            if self.fault == "half" and number >= len(names) // 2:
                raise TierError(TierFault.UNREACHABLE, "reset in the middle")
            yield self._spoilt(self.frames.get(name))

    def store(self, frames: Sequence[tuple[str, FrameBytes]], timeout_s: float) -> None:
        self._begin("store", len(frames))
        for name, frame in frames:
            self.frames.setdefault(name, bytes(frame))

    def refuse(self, frames: Sequence[tuple[str, FrameBytes]], timeout_s: float) -> None:
        """In place of `store`, for a tier that takes nothing."""
        raise TierError(TierFault.DENIED, "planted")

    def remove(self, names: Sequence[str], timeout_s: float) -> None:
        self._begin("remove", len(names))
        for name in names:
            self.frames.pop(name, None)

    def quarantine(self, names: Sequence[str], timeout_s: float) -> None:
        self.remove(names, timeout_s)

    def entries(self, timeout_s: float) -> Iterator[TierEntry]:
        for name, frame in self.frames.items():
            yield TierEntry(name, len(frame), None)

    def usage(self) -> TierUsage:
        return TierUsage(len(self.frames), sum(map(len, self.frames.values())), None)

    def close(self) -> None:
        self.is_closed = True

    def _begin(self, call: str, num_names: int) -> None:
        self.calls.append((call, num_names))
        if self.fault == "error":
            raise TierError(TierFault.UNREACHABLE, "planted")
        if self.fault == "panic":
            raise RuntimeError("planted")
        if self.fault == "hang":
            assert self.released.wait(60)
            raise TierError(TierFault.TIMEOUT, "planted")

    def _spoilt(self, frame: bytes | None) -> bytes | None:
        if frame is None or self.fault == "missing":
            return None
        if self.fault == "wrong":
            return frame[:-20] + bytes([frame[-20] ^ 1]) + frame[-19:]
        return frame[: len(frame) // 2] if self.fault == "torn" else frame


class ManualWorkers:
    """See `pagoda.tiers.workers.Workers`: a task is done when a test says so."""

    def __init__(self, name: str = "", num_threads: int = 1) -> None:
        self.num_threads = num_threads
        self.tasks: deque[Task] = deque()

    def submit(self, task: Task) -> bool:
        self.tasks.append(task)
        return True

    def num_overdue(self, limit_s: float) -> int:
        return 0

    def close(self) -> None:
        self.tasks.clear()

    def work(self, most: int) -> None:
        """Do up to so many tasks, those that come meanwhile too."""
        for _ in range(most):
            if self.tasks:
                self.tasks.popleft()()


def formats(block_bytes: int, *, secret: bytes | None = None) -> FrameFormats:
    """Of a made-up model; `secret`: as on a shared tier."""

    def make(tenant: str) -> FrameFormat:
        seal: Seal = Checksum() if secret is None else TenantSeal(secret, tenant)
        return FrameFormat(b"n" * 32, block_bytes, seal)

    return FrameFormats(make)
