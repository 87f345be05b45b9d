"""Names of tensors and keys as they stand in files of strangers."""

from __future__ import annotations

from pagoda.errors import ModelError

MOST_TENSORS = 2**12
"""Of a GGUF file: many times what any that is covered has, since all experts are one tensor."""
MOST_NAME_CHARACTERS = 256


def require_name(field: str, name: str) -> None:
    """Refuse a name that is empty or too long, or that a terminal or a log would not print.

    Raises `ModelError` for the `field`.
    """
    if not 1 <= len(name) <= MOST_NAME_CHARACTERS:
        limit = f"must have 1 to {MOST_NAME_CHARACTERS}"
        raise ModelError(field, f"{len(name):,} characters", limit)
    if not name.isprintable():
        raise ModelError(field, name, "must consist of characters that can be printed")
