"""What is held back at the end of a text that goes on, since it may be the beginning of a mark."""

from __future__ import annotations


def num_held(text: str, *marks: str) -> int:
    """Characters at the end of `text` that may be the beginning of one of `marks`."""
    return max(_num_begun(text, mark) for mark in marks)


def _num_begun(text: str, mark: str) -> int:
    sizes = range(min(len(mark) - 1, len(text)), 0, -1)
    return next((size for size in sizes if text.endswith(mark[:size])), 0)
