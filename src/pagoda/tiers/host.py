"""Frames in main memory: for blocks of a GPU. On a CPU a copy in the same memory buys nothing."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

from pagoda.tiers.shares import NO_SHARES, Shares
from pagoda.tiers.tier import FrameBytes, Tier, TierEntry, TierError, TierFault, TierUsage
from pagoda.tiers.use_order import UseOrder


class HostTier(Tier):
    """Bounded bytes; what was used least recently goes first, within its tenants' shares. It ends
    with its process."""

    kind = "host"
    is_shared = False

    def __init__(self, capacity_bytes: int, shares: Shares = NO_SHARES) -> None:
        """`shares`: see `UseOrder`."""
        self._capacity_bytes = capacity_bytes
        self._frames: dict[str, bytes] = {}
        self._order = UseOrder(capacity_bytes, shares)
        self._lock = threading.Lock()
        self._storing = threading.Lock()
        """Held by the one who makes room, so that nobody else takes it."""

    def holds(self, names: Sequence[str], timeout_s: float) -> list[bool]:
        self._use(names)
        with self._lock:
            return [name in self._frames for name in names]

    def load(self, names: Sequence[str], timeout_s: float) -> Iterator[FrameBytes | None]:
        self._use(names)
        for name in names:
            with self._lock:
                frame = self._frames.get(name)
            yield frame

    def store(self, frames: Sequence[tuple[str, FrameBytes]], timeout_s: float) -> None:
        with self._storing:
            for name, frame in frames:
                if name not in self._frames:
                    self._make_room(name, len(frame))
                    self._keep(name, self._copied(frame))
            self._use([name for name, _ in frames])

    def _use(self, names: Sequence[str]) -> None:
        """The first one last: the others are worth nothing without it."""
        with self._lock:
            self._order.use(reversed(names))

    def _make_room(self, name: str, num_bytes: int) -> None:
        if num_bytes > self._capacity_bytes:
            limit = f"a frame of {num_bytes:,} bytes does not fit into {self._capacity_bytes:,}"
            raise TierError(TierFault.FULL, f"host: {limit}")
        with self._lock:
            while goes := self._order.next_to_go(name, num_bytes, self._capacity_bytes):
                self._forget(goes)

    def _keep(self, name: str, frame: bytes) -> None:
        with self._lock:
            self._frames[name] = frame
            self._order.put(name, len(frame))

    @staticmethod
    def _copied(frame: FrameBytes) -> bytes:
        """Memory of its own, which nobody writes to any more."""
        try:
            return bytes(frame)
        except MemoryError:
            raise TierError(TierFault.FULL, "host: there is no memory left") from None

    def remove(self, names: Sequence[str], timeout_s: float) -> None:
        with self._lock:
            for name in names:
                if name in self._frames:
                    self._forget(name)

    def _forget(self, name: str) -> None:
        del self._frames[name]
        self._order.drop(name)

    def entries(self, timeout_s: float) -> Iterator[TierEntry]:
        with self._lock:
            sizes = {name: len(frame) for name, frame in self._frames.items()}
        for name, num_bytes in sizes.items():
            yield TierEntry(name, num_bytes, None)

    def usage(self) -> TierUsage:
        with self._lock:
            return TierUsage(len(self._frames), self._order.num_bytes, self._capacity_bytes)

    def close(self) -> None:
        with self._storing, self._lock:
            self._frames.clear()
            self._order.clear()
