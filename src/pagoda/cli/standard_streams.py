"""The process's stdin, stdout and stderr, some of which may be closed or write few characters."""

from __future__ import annotations

import io
import os
import sys
from typing import Literal, TextIO


def open_missing() -> bool:
    """Whether there is a stdout.

    Where one of the three was closed, as by `<&-`, nothing is read from it, and what is written
    to it is lost. Its descriptor is taken, so that no file that is opened later gets it.
    """
    has_stdout = sys.stdout is not None
    if sys.stdin is None:
        sys.stdin = _nothing("r")
    if sys.stdout is None:
        sys.stdout = _nothing("w")
    if sys.stderr is None:
        sys.stderr = _nothing("w")
    return has_stdout


def write_all_text() -> None:
    """Names of files that are no text, and characters that stdout lacks, become escapes there."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def _nothing(mode: Literal["r", "w"]) -> TextIO:
    return open(os.devnull, mode, encoding="utf-8")
