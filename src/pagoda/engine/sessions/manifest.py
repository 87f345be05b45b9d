"""A session as tiers keep it: frames like those of blocks, of which nobody but its tenant knows the
names.

    magic  bytes  checksum   the session   zeros, up to whole payloads
    8      8      16

A frame holds as many bytes as a block, so whatever keeps blocks keeps sessions. Frames never
change, but a session goes on: the old frames are removed before new ones are stored, and the
checksum tells whether all that is found belongs together.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

import xxhash

from pagoda.cache.prefix import root_hash
from pagoda.engine.sessions.session import Session, read_session
from pagoda.tiers.names import BlockName

_MAGIC = b"PGDAMANI"
_HEAD = struct.Struct("<8sQ16s")

LoadPayload = Callable[[BlockName], bytes | None]


def manifest_name(tenant: str, session_id: str, number: int) -> BlockName:
    """Under which name a part of a session lies."""
    return BlockName(root_hash(session=session_id, tenant=tenant, part=str(number)), 0)


def manifest_of(session: Session, payload_bytes: int) -> list[tuple[BlockName, bytes]]:
    """Its frames' payloads, each `payload_bytes` long, and their names."""
    assert payload_bytes >= _HEAD.size
    told = session.to_bytes()
    whole = _HEAD.pack(_MAGIC, len(told), xxhash.xxh3_128_digest(told)) + told
    return [
        (
            manifest_name(session.tenant, session.session_id, number),
            whole[start : start + payload_bytes].ljust(payload_bytes, b"\0"),
        )
        for number, start in enumerate(range(0, len(whole), payload_bytes))
    ]


def num_frames(first: bytes, payload_bytes: int, most_bytes: int) -> int:
    """How many frames a session takes whose first payload this is; 0 for none, or one of more than
    `most_bytes`."""
    magic, num_bytes, _ = _HEAD.unpack_from(first)
    if magic != _MAGIC or num_bytes > most_bytes:
        return 0
    return -(-(_HEAD.size + num_bytes) // payload_bytes)


def most_frames(payload_bytes: int, most_bytes: int) -> int:
    """Of a session of `most_bytes`."""
    return -(-(_HEAD.size + most_bytes) // payload_bytes)


def read_manifest(
    tenant: str, session_id: str, load: LoadPayload, payload_bytes: int, most_bytes: int
) -> Session | None:
    """The session of that id; None where there is none, or not the whole of one."""
    parts: list[bytes] = []
    first = load(manifest_name(tenant, session_id, 0))
    if first is None:
        return None
    parts.append(first)
    for number in range(1, num_frames(first, payload_bytes, most_bytes)):
        part = load(manifest_name(tenant, session_id, number))
        if part is None:
            return None
        parts.append(part)
    whole = b"".join(parts)
    magic, num_bytes, checksum = _HEAD.unpack_from(whole)
    told = whole[_HEAD.size : _HEAD.size + num_bytes]
    if magic != _MAGIC or len(told) != num_bytes or xxhash.xxh3_128_digest(told) != checksum:
        return None
    found = read_session(tenant, told)
    return found if found is not None and found.session_id == session_id else None
