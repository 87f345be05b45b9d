"""Files that a command is to write."""

from __future__ import annotations

from pathlib import Path

from pagoda.errors import InvalidOptionError


def require_writable(name: str, path: Path | None) -> None:
    """Raises `InvalidOptionError` now rather than after minutes of work; None may be written.

    No file is left where there was none.
    """
    if path is None:
        return
    try:
        is_new = not path.exists()
        path.open("a").close()
        if is_new:
            path.unlink()
    except OSError as error:
        reason = error.strerror or str(error)
        raise InvalidOptionError(name, str(path), f"cannot be written: {reason}") from error
