"""Under which name a frame lies.

    7f0c3a9d51e2b864-5a0e…(64 hex digits)[-91c4…(16 hex digits)]
    short digest     digest of namespace,   a tenant, if it has
    the namespace    block hash and group   a share of the tier

The digest is plain on tiers that are one process's own, and keyed with a tenant's secret on shared
ones, so that whoever reads the store can tell neither what a block holds nor whose it is. The
namespace's short digest in front lets several models share a store, and be listed and pruned apart.
"""

from __future__ import annotations

import re
import struct
from hashlib import sha256
from hmac import digest as keyed_digest
from typing import NamedTuple

DIGEST_BYTES = 32
SHORT_DIGITS = 16
"""Hex digits of a namespace's digest that names begin with."""
OWNER_DIGITS = 16
_DIGEST = slice(SHORT_DIGITS + 1, SHORT_DIGITS + 1 + 2 * DIGEST_BYTES)
_OWNER_AT = _DIGEST.stop + 1
_NAME = re.compile(
    rf"[0-9a-f]{{{SHORT_DIGITS}}}-[0-9a-f]{{{2 * DIGEST_BYTES}}}(-[0-9a-f]{{{OWNER_DIGITS}}})?"
)
_MAGIC = b"pagoda frame name 1"


class BlockName(NamedTuple):
    """One block of one group, by what it holds."""

    block_hash: bytes
    group: int
    number: int | None = None
    """Which block of its sequence it is, from 0, as its hash says too; None: it holds no tokens,
    and no form but its own bytes will do."""


def short_digest(namespace: bytes) -> str:
    """What names of a namespace of that digest begin with."""
    return namespace.hex()[:SHORT_DIGITS]


def block_digest(namespace: bytes, block: BlockName, key: bytes | None = None) -> bytes:
    """What stands for a block of a namespace: [DIGEST_BYTES] bytes.

    namespace: its digest, DIGEST_BYTES. key: of whom alone may know what it stands for (HMAC);
    None: anybody.
    """
    assert len(namespace) == DIGEST_BYTES
    told = _MAGIC + namespace + struct.pack("<I", block.group) + block.block_hash
    return sha256(told).digest() if key is None else keyed_digest(key, told, "sha256")


def frame_name(namespace: bytes, digest: bytes, owner: str = "") -> str:
    """Of the frame of a block that `block_digest` stands for; `owner`: a tenant with a share of the
    tier (`pagoda.tiers.shares`)."""
    name = f"{short_digest(namespace)}-{digest.hex()}"
    return f"{name}-{owner}" if owner else name


def is_frame_name(text: str) -> bool:
    """Whatever else lies in a store is none of Pagoda's."""
    return _NAME.fullmatch(text) is not None


def namespace_of(name: str) -> str:
    """The short digest of a frame's namespace."""
    return name[:SHORT_DIGITS]


def digest_of(name: str) -> bytes:
    """What stands for its block."""
    return bytes.fromhex(name[_DIGEST])


def owner_of(name: str) -> str:
    """Whose it is, of tenants with a share; "": of all others."""
    return name[_OWNER_AT:]
