"""A lock that one process at a time holds: a file, with that process's number in it for people.

The lock ends with the process, however that ends. The file stays, since to remove it could take it
from under another's lock.
"""

from __future__ import annotations

import errno
import fcntl
import os
from contextlib import suppress
from pathlib import Path

_MOST_DIGITS = 20


class InUseError(Exception):
    """Another has the lock; the message says who, as in "process 4711"."""


class FileLock:
    """Taken and released by one owner. What goes wrong with the file itself is an `OSError`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None
        """Open while the lock is held."""

    def take(self) -> None:
        """Make the file where it is not there, and hold it. Raises `InUseError`."""
        self._descriptor = descriptor = self._locked(os.O_RDWR | os.O_CREAT, fcntl.LOCK_EX)
        with suppress(OSError):  # for people to read; there may be no room for it
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, str(os.getpid()).encode(), 0)

    def require_free(self) -> None:
        """Raises `InUseError`. Nothing is made, and a lock without a file is free.

        Whoever asks at the same moment may be told that it is in use.
        """
        with suppress(FileNotFoundError):
            os.close(self._locked(os.O_RDONLY, fcntl.LOCK_SH))

    def is_held(self) -> bool:
        """False: it was not taken, or its file was removed, unmounted or replaced since."""
        descriptor = self._descriptor  # which another thread may close
        if descriptor is None:
            return False
        with suppress(OSError):
            return os.path.samestat(os.fstat(descriptor), os.stat(self._path))
        return False

    def release(self) -> None:
        """Let another have it; nothing where it is not held."""
        if self._descriptor is not None:
            with suppress(OSError):
                os.ftruncate(self._descriptor, 0)  # whoever has it next may not have said so yet
            os.close(self._descriptor)
            self._descriptor = None

    def _locked(self, flags: int, kind: int) -> int:
        descriptor = os.open(self._path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        except OSError as error:
            owner = os.pread(descriptor, _MOST_DIGITS, 0).decode("ascii", "replace").strip()
            os.close(descriptor)
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise
            who = f"process {owner}" if owner.isdigit() else "another process"
            raise InUseError(who) from None
        return descriptor
