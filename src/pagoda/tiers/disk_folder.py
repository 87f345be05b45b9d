"""The folder that a disk tier lives in, as files.

    pagoda-tier          says that the folder is a tier's, and of which format
    lock                 held by the one process that stores here; its number, for people
    frames/5a/NAME       a frame each, in folders by the first two hex digits of their digests
    incoming/            what is just being written: moved to its name once it is whole
    quarantine/NAME      bad frames, a few of them, for whoever wants to know why

A frame gets its name by a move within the file system, so a process that dies leaves whole frames
and some rest in `incoming`, which the next one removes. Frames are not flushed: what a machine that
loses its power leaves is told from one by its length or its checksum.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pagoda.tiers.file_lock import FileLock, InUseError
from pagoda.tiers.names import SHORT_DIGITS, is_frame_name
from pagoda.tiers.tier import FrameBytes, TierEntry, TierError, TierFault

_MARKER = "pagoda-tier"
_MARK = b"pagoda tier 1\n"
_LOCK = "lock"
_FRAMES = "frames"
_INCOMING = "incoming"
_QUARANTINE = "quarantine"
_UNFINISHED = re.compile(r"[0-9a-f]{16}")
"""Names in `incoming`."""
_OWNER = re.compile(rb"[0-9]{0,20}")
"""What `lock` holds."""
_MOST_QUARANTINED = 32
_PAGE = 4096
_FAULTS = {
    TierFault.FULL: (errno.ENOSPC, errno.EDQUOT, errno.EFBIG),
    TierFault.DENIED: (errno.EACCES, errno.EPERM, errno.EROFS),
    TierFault.UNREACHABLE: (errno.ENOENT, errno.EIO, errno.ENODEV, errno.ESTALE),
    TierFault.TIMEOUT: (errno.ETIMEDOUT,),
    TierFault.FOREIGN: (errno.EEXIST, errno.ENOTDIR),
}
_FAULT_OF = {number: fault for fault, numbers in _FAULTS.items() for number in numbers}


def on_disk(num_bytes: int) -> int:
    """Bytes that a file of so many takes: whole pages."""
    return -(-num_bytes // _PAGE) * _PAGE


class DiskFolder:
    """Opened and used by one tier. What goes wrong is a `TierError` that names the path."""

    def __init__(self, root: Path) -> None:
        """To be opened by one of `take` and `inspect`."""
        self._root = root
        self._lock = FileLock(root / _LOCK)

    def take(self, device: int | None = None) -> int:
        """Make the folder where it is not there, take the lock, remove what an earlier process
        left unfinished. Returns the number of the file system that it is on.

        device: that of the folder that was there before; on another one a tier's folder is taken,
        but none is made, since a disk may have been unmounted. Raises `TierError` for a folder that
        is another program's or in use.
        """
        self.require_free()
        if device is not None:
            self._require_mounted(device)
        with self._errors("cannot be opened"):
            self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._take_over()
            return self._root.stat().st_dev

    def require_free(self) -> None:
        """Nothing is there, or a tier's folder that nobody stores in. Raises `TierError` for what
        is another program's or in use; nothing is made."""
        with self._errors("cannot be opened"), suppress(FileNotFoundError):
            self._require_no_file()
            found = set(os.listdir(self._root))
            if _MARKER in found:
                self._require_mark()
                self._lock.require_free()
            elif not all(map(self._is_unfinished, found)):
                self._refuse_foreign("holds other files")

    def _is_unfinished(self, name: str) -> bool:
        """May lie in a folder that is no tier's yet: whoever was making it may have been killed."""
        path = self._root / name
        if name == _LOCK:
            return _OWNER.fullmatch(_read(path, _PAGE)) is not None
        if name == _INCOMING and path.is_dir():
            return all(map(_UNFINISHED.fullmatch, os.listdir(path)))
        return name == "lost+found"

    def _require_mounted(self, device: int) -> None:
        with self._errors("cannot be opened"):
            there = next(path for path in (self._root, *self._root.parents) if path.exists())
            if there.stat().st_dev != device and not (self._root / _MARKER).exists():
                limit = f"{self._root} is on another file system than before: is its disk mounted?"
                raise TierError(TierFault.UNREACHABLE, limit)

    def inspect(self) -> None:
        """Another process may be storing here: nothing is made, and nothing can be written. Raises
        `TierError` for a folder that is no tier's."""
        with self._errors("cannot be opened"):
            self._root.stat()  # or raises, where nothing is there
            self._require_no_file()
            self._require_mark()

    def _take_over(self) -> None:
        self._lock.take()
        try:
            (self._root / _INCOMING).mkdir(mode=0o700, exist_ok=True)
            for path in (self._root / _INCOMING).iterdir():
                if _UNFINISHED.fullmatch(path.name):
                    path.unlink()
            if not (self._root / _MARKER).exists():
                self._write(_MARK, self._root / _MARKER, is_flushed=True)
            for name in (_FRAMES, _QUARANTINE):
                (self._root / name).mkdir(mode=0o700, exist_ok=True)
        except BaseException:
            self.close()
            raise

    def _require_no_file(self) -> None:
        if self._root.exists() and not self._root.is_dir():
            self._refuse_foreign("is a file")

    def _require_mark(self) -> None:
        try:
            mark = _read(self._root / _MARKER, len(_MARK))
        except FileNotFoundError:
            mark = None
        if mark is None:
            self._refuse_foreign("is not a tier's")
        if mark != _MARK:
            self._refuse_foreign("is a tier's of another version")

    def _refuse_foreign(self, why: str) -> None:
        raise TierError(TierFault.FOREIGN, f"{self._root} {why}: give it a folder of its own")

    def is_there(self) -> bool:
        """False: it was removed, unmounted or replaced since it was taken."""
        return self._lock.is_held()

    def is_whole(self) -> bool:
        """False: parts of it were removed."""
        with suppress(OSError):
            return all((self._root / name).exists() for name in (_MARKER, _FRAMES, _INCOMING))
        return False

    def holds(self, name: str) -> bool:
        with self._errors("cannot be read"):
            try:
                os.stat(self._place(name))
            except (FileNotFoundError, NotADirectoryError):
                return False
            return True

    def read(self, name: str, max_bytes: int, used_at: float | None) -> bytes | None:
        """A frame, or the first `max_bytes` of what lies there; None where nothing does.

        used_at: what the file's time is set to, if it is.
        """
        with self._errors("cannot be read"):
            try:
                return _read(self._path(name), max_bytes, used_at)
            except FileNotFoundError:
                return None

    def write(self, name: str, frame: FrameBytes, used_at: float) -> None:
        """A frame under its name; nothing is left behind where that fails."""
        path = self._path(name)
        with self._errors("cannot be written"):
            path.parent.mkdir(mode=0o700, exist_ok=True)
            self._write(frame, path, used_at)

    def _write(
        self,
        content: FrameBytes,
        path: Path,
        used_at: float | None = None,
        *,
        is_flushed: bool = False,
    ) -> None:
        incoming = self._root / _INCOMING / os.urandom(8).hex()
        try:
            with open(incoming, "xb", buffering=0, opener=_private) as file:
                left = memoryview(content)
                while left:
                    left = left[file.write(left) :]
                if used_at is not None:
                    _set_time(file.fileno(), used_at)
                if is_flushed:
                    os.fsync(file.fileno())
            incoming.replace(path)
        except BaseException:
            with suppress(OSError):
                incoming.unlink()
            raise

    def remove(self, name: str) -> bool:
        """False: it was not there."""
        with self._errors("cannot be removed"):
            try:
                self._path(name).unlink()
            except FileNotFoundError:
                return False
            return True

    def quarantine(self, name: str) -> None:
        """Move a frame to the bad ones."""
        with self._errors("cannot be set apart"), suppress(FileNotFoundError):
            self._path(name).replace(self._root / _QUARANTINE / name)
            os.utime(self._root / _QUARANTINE / name, follow_symlinks=False)

    def trim_quarantine(self, max_bytes: int) -> int:
        """Remove all but the newest bad frames; returns the bytes that those take."""
        num_bytes = 0
        with self._errors("cannot be set apart"):
            newest = sorted(_entries(self._root / _QUARANTINE), key=_age)
            for number, entry in enumerate(newest):
                size = on_disk(entry.num_bytes)
                if number < _MOST_QUARANTINED and num_bytes + size <= max_bytes:
                    num_bytes += size
                else:
                    (self._root / _QUARANTINE / entry.name).unlink(missing_ok=True)
        return num_bytes

    def entries(self) -> Iterator[TierEntry]:
        """Every frame, in no order. What is no frame, or lies in the wrong place, is left out."""
        with self._errors("cannot be listed"):
            for first in sorted(os.listdir(self._root / _FRAMES)):
                for entry in _entries(self._root / _FRAMES / first):
                    if _folder_of(entry.name) == first:
                        yield entry

    def close(self) -> None:
        self._lock.release()

    def _path(self, name: str) -> Path:
        return Path(self._place(name))

    def _place(self, name: str) -> str:
        """Put together as a text, since a prompt asks for hundreds."""
        assert is_frame_name(name), name
        return f"{self._root}/{_FRAMES}/{_folder_of(name)}/{name}"

    @contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        try:
            yield
        except InUseError as error:
            limit = f"{self._root} is in use by {error}: give each its own folder"
            raise TierError(TierFault.IN_USE, limit) from None
        except OSError as error:
            reason = _FAULT_OF.get(error.errno or 0, TierFault.ERROR)
            why = error.strerror or type(error).__name__
            raise TierError(reason, f"{self._root} {what}: {why}") from error


def _folder_of(name: str) -> str:
    return name[SHORT_DIGITS + 1 : SHORT_DIGITS + 3]


def _age(entry: TierEntry) -> float:
    """The newest first."""
    return -(entry.used_at or 0)


def _entries(folder: Path) -> Iterator[TierEntry]:
    try:
        found = os.scandir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return
    with found:
        for each in found:
            if not is_frame_name(each.name):
                continue
            with suppress(FileNotFoundError):
                facts = each.stat(follow_symlinks=False)
                yield TierEntry(each.name, facts.st_size, facts.st_mtime)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o600)


def _set_time(descriptor: int, used_at: float) -> None:
    with suppress(OSError):  # of a disk that is read-only
        os.utime(descriptor, (used_at, used_at))


def _read(path: Path, max_bytes: int, used_at: float | None = None) -> bytes:
    """The beginning of a file; nothing of what is none: a pipe would be waited for."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            return b""
        raise
    try:
        facts = os.fstat(descriptor)
        if not stat.S_ISREG(facts.st_mode):
            return b""
        if used_at is not None:
            _set_time(descriptor, used_at)
        return os.read(descriptor, min(facts.st_size, max_bytes))
    finally:
        os.close(descriptor)
