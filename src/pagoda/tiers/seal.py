"""How a frame's body is protected beyond its checksum.

A tier of one process's own needs no more than the checksum that every frame has. On a shared one
others may read and write: there the body is sealed with AES-256-GCM under its tenant's key, with
the header as associated data, and its name is keyed too. Keys come from one secret by HKDF (RFC
5869), so whoever has the secret has all tenants'.

A key seals with random nonces of 96 bits: good for 2³² frames of a tenant (NIST SP 800-38D).
"""

from __future__ import annotations

import os
import re
from typing import Protocol

from pagoda.errors import InvalidOptionError
from pagoda.tiers.tier import FrameBytes

SECRET_BYTES = 32
_NONCE_BYTES = 12
_TAG_BYTES = 16
_HEX = re.compile(rb"[0-9a-fA-F\s]*")


class SealError(Exception):
    """A body was sealed with another key, or was changed."""


class Seal(Protocol):
    """What a body goes through before it is stored; any thread may use one."""

    @property
    def number(self) -> int:
        """As headers write it, 0 to 255."""
        ...

    @property
    def name_key(self) -> bytes | None:
        """What names are keyed with; None: they are plain."""
        ...

    @property
    def extra_bytes(self) -> int:
        """What a sealed body has more than a plain one."""
        ...

    def protect(self, header: bytes, body: FrameBytes) -> FrameBytes:
        """The body as it is stored, bound to its header."""
        ...

    def reveal(self, header: bytes, stored: FrameBytes) -> FrameBytes:
        """The body again. Raises `SealError`."""
        ...


class Checksum:
    """Nothing but the checksum that each frame has."""

    number = 0
    name_key = None
    extra_bytes = 0

    def protect(self, header: bytes, body: FrameBytes) -> FrameBytes:
        return body

    def reveal(self, header: bytes, stored: FrameBytes) -> FrameBytes:
        return stored


class TenantSeal:
    """AES-256-GCM with a tenant's key: nonce, then what is encrypted, then its tag."""

    number = 1
    extra_bytes = _NONCE_BYTES + _TAG_BYTES

    def __init__(self, secret: bytes, tenant: str) -> None:
        """secret: SECRET_BYTES of them, of the whole house; `read_secret` reads them."""
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        assert len(secret) == SECRET_BYTES
        self.name_key = _derived(secret, b"names", tenant)
        self._cipher = AESGCM(_derived(secret, b"bodies", tenant))

    def protect(self, header: bytes, body: FrameBytes) -> FrameBytes:
        nonce = os.urandom(_NONCE_BYTES)
        return nonce + self._cipher.encrypt(nonce, body, header)

    def reveal(self, header: bytes, stored: FrameBytes) -> FrameBytes:
        from cryptography.exceptions import InvalidTag

        sealed = memoryview(stored)
        try:
            return self._cipher.decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], header)
        except (InvalidTag, ValueError):
            raise SealError from None


def _derived(secret: bytes, purpose: bytes, tenant: str) -> bytes:
    """A key of 32 bytes for one purpose and one tenant."""
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    told = b"pagoda tier 1 " + purpose + b":" + tenant.encode("utf-8", "surrogatepass")
    return HKDF(SHA256(), 32, salt=None, info=told).derive(secret)


def parse_secret(field: str, text: bytes) -> bytes:
    """What a key file holds: SECRET_BYTES as they are, or twice as many hex digits.

    So many bytes that are hex digits are half a key, and are refused. Raises `InvalidOptionError`,
    which does not show them.
    """
    if len(text) == SECRET_BYTES and not _HEX.fullmatch(text):
        return text
    try:
        secret = bytes.fromhex(text.decode("ascii").strip())
    except ValueError:
        secret = b""
    if len(secret) != SECRET_BYTES:
        limit = f"a key is {SECRET_BYTES} bytes, or {2 * SECRET_BYTES} hex digits"
        raise InvalidOptionError(field, f"{len(text)} bytes", limit)
    return secret


def new_secret() -> str:
    """A fresh one, in hex digits."""
    return os.urandom(SECRET_BYTES).hex()
