"""The file with the secret that tenants' keys come from."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from stat import S_IMODE

from pagoda.errors import InvalidOptionError
from pagoda.tiers.seal import new_secret, parse_secret

logger = logging.getLogger("pagoda")

_MOST_BYTES = 1024
_OTHERS_READ = 0o044


def read_secret(field: str, path: Path) -> bytes:
    """The secret. Raises as `check_secret` does. Where others may read it, that is logged."""
    secret, mode = _read(field, path)
    if mode & _OTHERS_READ:
        told = "others may read the key of all tenants in %s (mode %o): chmod 600 keeps it private"
        logger.warning(told, path, mode)
    return secret


def check_secret(field: str, path: Path) -> None:
    """Raises `InvalidOptionError` for a file that cannot be read or holds something else; what it
    holds is never shown."""
    _read(field, path)


def _read(field: str, path: Path) -> tuple[bytes, int]:
    """The secret, and who may read the file."""
    try:
        with path.open("rb") as file:
            text = file.read(_MOST_BYTES)
            mode = S_IMODE(os.fstat(file.fileno()).st_mode)
    except OSError as error:
        reason = error.strerror or str(error)
        raise InvalidOptionError(field, str(path), f"cannot be read: {reason}") from None
    return parse_secret(field, text), mode


def write_new_secret(field: str, path: Path) -> None:
    """A fresh one, for nobody but its owner to read.

    Raises `InvalidOptionError` where the file is there already, or cannot be written.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        limit = "is there already: what was stored with its key could not be read without it"
        raise InvalidOptionError(field, str(path), limit) from None
    except OSError as error:
        reason = error.strerror or str(error)
        raise InvalidOptionError(field, str(path), f"cannot be written: {reason}") from None
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(new_secret() + "\n")
        file.flush()
        os.fsync(descriptor)
