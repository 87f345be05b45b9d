"""Frames in a folder: bounded bytes, a file each, least recently used first to go, within shares.

Files that are there count from the start, so that the bound holds over restarts; they are counted
by a thread of its own, while frames can be loaded already. One process stores in a folder at a
time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from pagoda.tiers.deadline import Deadline
from pagoda.tiers.disk_folder import DiskFolder, on_disk
from pagoda.tiers.patience import Patience
from pagoda.tiers.shares import NO_SHARES, Shares
from pagoda.tiers.tier import FrameBytes, Tier, TierEntry, TierError, TierFault, TierUsage
from pagoda.tiers.use_order import UseOrder

MAX_FRAME_BYTES = 2**30
_TOUCHED_EVERY_S = 60.0
"""A file's time is no older than its last use by more than this."""
_QUARANTINE_SHARE = 16
"""Bad frames that are set apart take a sixteenth of the room at most."""
_QUARANTINE_BYTES = 64 * 2**20
"""So much at most, where the room is not known."""


def require_free_folder(path: Path, timeout_s: float) -> None:
    """See that `path` can be a tier's folder: that it is no file, and no other program's. Raises
    `TierError`, also where the disk does not answer."""
    patience = Patience(f"disk {path}")
    patience.call(DiskFolder(path).require_free, timeout_s)


class DiskTier(Tier):
    """One folder. Everything that may hang is done by threads that can be given up on."""

    kind = "disk"
    is_shared = False

    def __init__(
        self,
        path: Path,
        capacity_bytes: int | None,
        *,
        shares: Shares = NO_SHARES,
        max_frame_bytes: int = MAX_FRAME_BYTES,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`path` is made where it is not there, by the first call.

        capacity_bytes: None for commands that inspect a folder which a server may be using:
        everything but storing can be done, and nothing is made. shares: see `UseOrder`.
        max_frame_bytes: no more of a file is read. clock: seconds since the epoch.
        """
        self._path = path
        self._stores = capacity_bytes is not None
        """The folder is its own. False: another process may be storing there."""
        self._capacity_bytes = capacity_bytes or 0
        self._max_frame_bytes = max_frame_bytes
        self._clock = clock
        self._patience = Patience(f"disk {path}")
        self._opening = threading.Lock()
        self._folder: DiskFolder | None = None
        self._device: int | None = None
        """Of the folder's file system, once it was opened."""
        self._counted = threading.Event()
        self._storing = threading.Lock()
        """Held by the one who makes room and writes, so that nobody else takes the room."""
        self._lock = threading.Lock()
        """Of what follows; held for moments, never while the disk is asked."""
        self._used_at: dict[str, float] = {}
        """Of each file that is there, its time as the disk has it."""
        self._order = UseOrder(self._capacity_bytes, shares)
        """With the rest of their last pages."""
        self._quarantined_bytes = 0
        self._closed = False

    def holds(self, names: Sequence[str], timeout_s: float) -> list[bool]:
        def ask() -> list[bool]:
            folder = self._opened()
            if not self._is_certain():
                return [folder.holds(name) for name in names]
            self._use(names)
            return [self._is_known(folder, name) for name in names]

        return self._patience.call(ask, timeout_s)

    def load(self, names: Sequence[str], timeout_s: float) -> Iterator[FrameBytes | None]:
        def read() -> Iterator[FrameBytes | None]:
            folder = self._opened()
            try:
                for position, name in enumerate(names):
                    yield self._load(folder, name, position)
            finally:
                self._use(names)

        return self._patience.stream(read, timeout_s)

    def _load(self, folder: DiskFolder, name: str, position: int) -> bytes | None:
        used_at = self._moment(position)
        is_old = self._stores and self._is_old(name, used_at)
        frame = folder.read(name, self._max_frame_bytes + 1, used_at if is_old else None)
        if frame is None:
            self._miss(folder, name)
        elif is_old:
            self._note_time(name, used_at)
        return frame

    def store(self, frames: Sequence[tuple[str, FrameBytes]], timeout_s: float) -> None:
        deadline = Deadline(timeout_s, str(self._path))

        def write() -> None:
            folder = self._opened()
            if not self._stores:
                limit = f"{self._path} was opened for inspection alone"
                raise TierError(TierFault.DENIED, limit)
            if not self._counted.wait(deadline.left_s()):
                raise TierError(TierFault.TIMEOUT, f"{self._path} is still being counted")
            if not self._storing.acquire(timeout=deadline.left_s()):
                raise deadline.error()
            try:
                for position, (name, frame) in enumerate(frames):
                    deadline.left_s()  # or raises
                    self._store(folder, name, frame, position)
            finally:
                self._storing.release()
                self._use([name for name, _ in frames])

        self._patience.call(write, timeout_s)

    def _store(self, folder: DiskFolder, name: str, frame: FrameBytes, position: int) -> None:
        if self._is_known(folder, name):
            return
        num_bytes, used_at = on_disk(len(frame)), self._moment(position)
        self._make_room(folder, name, num_bytes)
        try:
            folder.write(name, frame, used_at)
        except TierError:
            if not folder.is_whole():
                self._reopen(folder)
            raise
        with self._lock:
            self._used_at[name] = used_at
            self._order.put(name, num_bytes)

    def _is_known(self, folder: DiskFolder, name: str) -> bool:
        """It was counted and is there: a command, or a person, may remove it at any time."""
        with self._lock:
            if name not in self._used_at:
                return False
        is_there = folder.holds(name)
        if not is_there:
            self._miss(folder, name)
        return is_there

    def _make_room(self, folder: DiskFolder, name: str, num_bytes: int) -> None:
        """Remove what was used least recently, within shares, until so many bytes more are within
        the bound."""
        if self._room(num_bytes) < 0:
            limit = f"a frame of {num_bytes:,} bytes does not fit into {self._capacity_bytes:,}"
            raise TierError(TierFault.FULL, f"{self._path}: {limit}")
        self._shrink(folder, name, num_bytes)

    def _room(self, num_bytes: int) -> int:
        """For files that are there, beside so many bytes more."""
        return self._capacity_bytes - self._quarantined_bytes - num_bytes

    def _shrink(self, folder: DiskFolder, name: str, num_bytes: int) -> None:
        while True:
            with self._lock:
                oldest = self._order.next_to_go(name, num_bytes, max(self._room(0), num_bytes))
            if oldest is None:
                return
            if folder.remove(oldest):
                self._forget(oldest)
            else:
                self._miss(folder, oldest)

    def remove(self, names: Sequence[str], timeout_s: float) -> None:
        self._take_away(names, timeout_s, lambda folder, name: folder.remove(name))

    def quarantine(self, names: Sequence[str], timeout_s: float) -> None:
        """Move frames into the folder `quarantine`, where the last few stay."""

        def set_apart(folder: DiskFolder, name: str) -> None:
            folder.quarantine(name)
            self._count_quarantine(folder)

        self._take_away(names, timeout_s, set_apart)

    def _count_quarantine(self, folder: DiskFolder) -> None:
        """And let no more of it stay than may."""
        bound = self._capacity_bytes // _QUARANTINE_SHARE or _QUARANTINE_BYTES
        self._quarantined_bytes = folder.trim_quarantine(bound)

    def _take_away(
        self, names: Sequence[str], timeout_s: float, take: Callable[[DiskFolder, str], object]
    ) -> None:
        def work() -> None:
            folder = self._opened()
            for name in names:
                take(folder, name)
                self._forget(name)

        self._patience.call(work, timeout_s)

    def entries(self, timeout_s: float) -> Iterator[TierEntry]:
        return self._patience.stream(lambda: self._opened().entries(), timeout_s)

    def usage(self) -> TierUsage:
        """Of what was counted so far; raises nothing."""
        with self._lock:
            num_bytes = self._order.num_bytes + self._quarantined_bytes
            return TierUsage(len(self._used_at), num_bytes, self._capacity_bytes)

    def wait_until_counted(self, timeout_s: float) -> bool:
        """All files that were there at the start have been counted."""
        self.holds((), timeout_s)
        return self._counted.wait(timeout_s)

    def close(self) -> None:
        self._closed = True
        if self._folder is not None:
            self._folder.close()

    def _opened(self) -> DiskFolder:
        """The folder, opened now if it was not yet, or is another one now. Raises `TierError`."""
        folder = self._folder
        if folder is not None and self._stores and not folder.is_there():
            self._reopen(folder)
        with self._opening:
            if self._closed:
                raise TierError(TierFault.UNREACHABLE, f"{self._path} was closed")
            if self._folder is None:
                folder = DiskFolder(self._path)
                if self._stores:
                    self._device = folder.take(self._device)
                else:
                    folder.inspect()
                self._folder = folder
                if self._closed:  # meanwhile
                    self.close()
                self._count(folder)
            return self._folder

    def _reopen(self, folder: DiskFolder) -> None:
        """The folder is gone, or parts of it are: the next call makes it anew."""
        with self._opening:
            if self._folder is folder:
                folder.close()
                self._folder = None

    def _count(self, folder: DiskFolder) -> None:
        """Begin to count what lies in a folder that was just opened."""
        self._counted.clear()
        with self._lock:
            self._used_at.clear()
            self._order.clear()

        def count() -> None:
            try:
                found = sorted(folder.entries(), key=lambda entry: entry.used_at or 0.0)
                if self._stores:
                    self._count_quarantine(folder)
                with self._lock:
                    for entry in found:
                        self._used_at[entry.name] = entry.used_at or 0.0
                        self._order.put(entry.name, on_disk(entry.num_bytes))
                if self._stores:
                    self._shrink(folder, "", 0)
            except TierError:
                self._reopen(folder)
                return
            self._counted.set()

        threading.Thread(target=count, name=f"pagoda counts {self._path}", daemon=True).start()

    def _is_certain(self) -> bool:
        """Nobody else stores here, and all files are known."""
        return self._stores and self._counted.is_set()

    def _moment(self, position: int) -> float:
        """When the frame at a position of a call counts as used: the first one last, since the
        others are worth nothing without it."""
        return self._clock() - position * 1e-6

    def _use(self, names: Sequence[str]) -> None:
        with self._lock:
            self._order.use(reversed(names))

    def _is_old(self, name: str, now: float) -> bool:
        """The time of the file is to be set anew when it is used."""
        with self._lock:
            used_at = self._used_at.get(name)
            return used_at is None or now - used_at > _TOUCHED_EVERY_S

    def _note_time(self, name: str, used_at: float) -> None:
        with self._lock:
            if name in self._used_at:
                self._used_at[name] = used_at

    def _miss(self, folder: DiskFolder, name: str) -> None:
        """A file is not there: if it was, somebody removed it or set it apart."""
        if self._forget(name) and self._stores:
            self._count_quarantine(folder)

    def _forget(self, name: str) -> bool:
        """False: it was not known."""
        with self._lock:
            self._used_at.pop(name, None)
            return self._order.drop(name)
