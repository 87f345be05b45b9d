"""Files that a command is to write."""

from __future__ import annotations

from pathlib import Path

from pagoda.errors import InvalidOptionError


def require_writable(name: str, path: Path | None) -> None:
    """Raises `InvalidOptionError` now rather than after minutes of work; None may be written."""
    if path is None:
        return
    try:
        path.open("a").close()
    except OSError as error:
        reason = error.strerror or str(error)
        raise InvalidOptionError(name, str(path), f"cannot be written: {reason}") from error
