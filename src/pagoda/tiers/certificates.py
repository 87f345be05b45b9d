"""Whose certificates are trusted, where a store has those of an authority of its own."""

from __future__ import annotations

import ssl
from pathlib import Path

from pagoda.errors import InvalidOptionError


def context_of(ca_file: str | None, option: str) -> ssl.SSLContext:
    """For TLS; None: those that the machine trusts. Raises InvalidOptionError."""
    try:
        return ssl.create_default_context(cafile=ca_file)
    except OSError as error:
        limit = f"no certificates of an authority can be read there ({error.strerror or error})"
        raise InvalidOptionError(f"{option} ca", ca_file, limit) from None


def read_certificates(ca_file: str, option: str) -> bytes:
    """What the file holds. Raises InvalidOptionError for what are no certificates."""
    context_of(ca_file, option)
    return Path(ca_file).read_bytes()
