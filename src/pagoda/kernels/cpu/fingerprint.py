"""A number that changes whenever the building blocks of kernels change.

Numba keeps compiled kernels on disk and compiles again when a kernel's own file has changed, but
does not see the files that the kernel is built from. A kernel that reads this number as a variable
of the function around it has the number in its key on disk.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path


def fingerprint_of(files: Iterable[Path]) -> int:
    """A number of 56 bits that stands for the files' content."""
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.read_bytes())
    return int.from_bytes(digest.digest()[:7], "big")


FINGERPRINT = fingerprint_of(sorted(Path(__file__).parent.glob("*.py")))
