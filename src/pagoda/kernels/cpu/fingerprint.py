"""A name for compiled code that changes whenever the files change that it is made from.

Compiled functions are kept on disk under their names (`kept_code`) and compiled anew when their
own file has changed; but nothing there sees the files that a function is built from. What older
versions kept stays on disk, a few megabytes, until somebody removes it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any


def fingerprint_of(files: Iterable[Path]) -> str:
    """16 hexadecimal digits that stand for the files' content."""
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


_HERE = Path(__file__).parent
SOURCES = (
    *sorted(_HERE.glob("*.py")),
    _HERE.parent / "block_types.py",
    _HERE.parent / "page_layout.py",
    _HERE.parent / "vector_code.py",
)
"""The kernels, and what says where numbers lie that they read and write."""
_FINGERPRINT = fingerprint_of(SOURCES)


def fingerprinted(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, under a name that no other version of the kernels uses."""
    function.__qualname__ = f"{function.__qualname__}-{_FINGERPRINT}"
    return function
