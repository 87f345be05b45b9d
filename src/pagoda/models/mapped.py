"""Files seen through the page cache, whose pages can be given back."""

from __future__ import annotations

import mmap
from pathlib import Path

from pagoda.errors import ModelError

_DONT_NEED = getattr(mmap, "MADV_DONTNEED", None)


def map_file(path: Path) -> mmap.mmap:
    """The whole file as memory; `ModelError` where it cannot be opened or is empty.

    The mapping is private: it could be written without changing the file, which is what lets
    PyTorch take it without copying.
    """
    try:
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    except OSError as error:
        raise ModelError(path.name, str(path), f"cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ModelError(path.name, str(path), "the file is empty") from error


def release_pages(data: mmap.mmap, start: int, size_bytes: int) -> None:
    """Take the pages of a range out of this process; reading them again brings them back."""
    if _DONT_NEED is None:
        return
    first = start - start % mmap.PAGESIZE
    data.madvise(_DONT_NEED, first, start + size_bytes - first)
