"""A frame: one block of one group as a tier keeps it.

    header                                                              | body        | checksum
    magic version seal method item group payload body  namespace digest | the payload | xxh3_128
                                   bytes       bytes   bytes            |             | of both
    4     2       1    1      2    4     8       8     32        32     |             | 16

The body is the payload, compressed and then sealed where that is asked for; `digest` stands for the
block and group (`pagoda.tiers.names`). Numbers are little-endian.

A reader knows what to expect: the namespace, the block, and how many bytes its payload has. So no
length that a frame claims is believed: nothing is allocated by one. Reasons are told apart in the
order in which they can be known: a frame that was damaged is no other model's.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import xxhash

from pagoda.tiers.compression import (
    NO_COMPRESSION,
    Compression,
    CompressionError,
    compression_of,
)
from pagoda.tiers.names import (
    BlockName,
    block_digest,
    digest_of,
    frame_name,
    namespace_of,
    short_digest,
)
from pagoda.tiers.packing import Packing, PackingError
from pagoda.tiers.seal import Seal, SealError
from pagoda.tiers.tier import FrameBytes

VERSION = 1
_MAGIC = b"PGDA"
_HEADER = struct.Struct("<4sHBBHIQQ32s32s")
_CHECKSUM_BYTES = 16
_PREFIX_BYTES = 6
"""Magic and version, which every version has."""


class Rejection(StrEnum):
    """Why a frame is not taken, as metrics call it."""

    TORN = "torn"
    """It is no frame, or not the whole of one."""
    CHECKSUM = "checksum"
    """Some bit of it is not as it was written."""
    VERSION = "version"
    """It is of another version of this format."""
    NAMESPACE = "namespace"
    """Another model's, dtype's, codec's …"""
    GROUP = "group"
    """Of another group of layers."""
    HASH = "hash"
    """Another block's."""
    TENANT = "tenant"
    """It does not decrypt with this tenant's key, or is not sealed as it should be."""
    LENGTH = "length"
    """It is longer than it says, or its payload is not as long as a block's."""
    FORM = "form"
    """Its payload is not what the lossy form that it should be of makes of a block."""


class FrameError(Exception):
    """A frame is not what it should be."""

    def __init__(self, reason: Rejection) -> None:
        super().__init__(reason.value)
        self.reason = reason


class FrameHeader(NamedTuple):
    """What a whole frame, whose checksum is right, says of itself."""

    seal: int
    compression: Compression
    group: int
    payload_bytes: int
    namespace: bytes
    digest: bytes


class _Parts(NamedTuple):
    header: FrameHeader
    header_bytes: bytes
    body: memoryview


@dataclass(frozen=True, slots=True)
class FrameFormat:
    """What all frames of one model and one tenant in a tier have in common."""

    namespace: bytes
    """Digest of it."""
    payload_bytes: int
    """Of a block."""
    seal: Seal
    compression: Compression = NO_COMPRESSION
    owner: str = ""
    """Of a tenant with a share of the tier, in names."""
    packing: Packing | None = None
    """The lossy form that blocks lie in; None: as they are."""

    @property
    def max_bytes(self) -> int:
        """Of the longest frame."""
        payload_bytes = self.payload_bytes
        if self.packing is not None:
            payload_bytes = self.packing.max_payload_bytes
        return _HEADER.size + payload_bytes + self.seal.extra_bytes + _CHECKSUM_BYTES

    def name(self, block: BlockName) -> str:
        """Where a block's frame lies."""
        return frame_name(self.namespace, self._digest(block), self.owner)

    def encode(self, block: BlockName, payload: FrameBytes) -> bytes:
        """A block's frame. payload: `payload_bytes` of bytes, which are only read."""
        payload = memoryview(payload).cast("B")
        assert len(payload) == self.payload_bytes
        if self.packing is not None:
            payload = memoryview(self.packing.pack(block, payload))
        compression, body = self.compression.compress(payload)
        header = _HEADER.pack(
            _MAGIC,
            VERSION,
            self.seal.number,
            compression.method,
            compression.item_bytes,
            block.group,
            len(payload),
            len(body) + self.seal.extra_bytes,
            self.namespace,
            self._digest(block),
        )
        stored = self.seal.protect(header, body)
        return b"".join((header, stored, _checksum(header, stored)))

    def decode(self, block: BlockName, frame: FrameBytes) -> FrameBytes:
        """A block's payload, `payload_bytes` long; it may be a view of `frame`. Where it lies in a
        lossy form, it is near to what `encode` was given.

        Raises `FrameError` for a frame that is not this block's, of this namespace and tenant.
        """
        header, header_bytes, stored = _parts(frame)
        if header.namespace != self.namespace:
            raise FrameError(Rejection.NAMESPACE)
        if header.group != block.group:
            raise FrameError(Rejection.GROUP)
        if header.seal != self.seal.number:
            raise FrameError(Rejection.TENANT)
        if not self._may_have(header.payload_bytes) or len(frame) > self.max_bytes:
            raise FrameError(Rejection.LENGTH)
        body = _revealed(header, header_bytes, stored, self.seal)
        if header.digest != self._digest(block):
            raise FrameError(Rejection.HASH)
        payload = _payload(header, body)
        if self.packing is None:
            return payload
        try:
            return self.packing.unpack(block, memoryview(payload))
        except PackingError:
            raise FrameError(Rejection.FORM) from None

    def _may_have(self, payload_bytes: int) -> bool:
        if self.packing is None:
            return payload_bytes == self.payload_bytes
        return payload_bytes <= self.packing.max_payload_bytes

    def _digest(self, block: BlockName) -> bytes:
        return block_digest(self.namespace, block, self.seal.name_key)


def inspect(name: str, frame: FrameBytes) -> FrameHeader:
    """What a frame says of itself, its checksum being right and its name its own.

    Raises `FrameError`.
    """
    header = _parts(frame).header
    if short_digest(header.namespace) != namespace_of(name):
        raise FrameError(Rejection.NAMESPACE)
    if header.digest != digest_of(name):
        raise FrameError(Rejection.HASH)
    return header


def check_body(frame: FrameBytes, seal: Seal, max_payload_bytes: int) -> None:
    """Open a frame that `inspect` took, seal and compression. Raises `FrameError`.

    max_payload_bytes: one whose payload would be longer is refused.
    """
    header, header_bytes, stored = _parts(frame)
    if header.payload_bytes > max_payload_bytes:
        raise FrameError(Rejection.LENGTH)
    _payload(header, _revealed(header, header_bytes, stored, seal))


def _parts(frame: FrameBytes) -> _Parts:
    """A frame's header and body, if it is whole. Raises `FrameError`."""
    view = memoryview(frame)
    if bytes(view[: len(_MAGIC)]) != _MAGIC or len(view) < _PREFIX_BYTES:
        raise FrameError(Rejection.TORN)
    if int.from_bytes(view[len(_MAGIC) : _PREFIX_BYTES], "little") != VERSION:
        raise FrameError(Rejection.VERSION)
    num_body = len(view) - _HEADER.size - _CHECKSUM_BYTES
    if num_body < 0:
        raise FrameError(Rejection.TORN)
    header_bytes = bytes(view[: _HEADER.size])
    fields = _HEADER.unpack(header_bytes)
    _, _, seal, method, item_bytes, group, payload_bytes, body_bytes, namespace, digest = fields
    if body_bytes > num_body:
        raise FrameError(Rejection.TORN)
    if body_bytes < num_body:
        raise FrameError(Rejection.LENGTH)
    body = view[_HEADER.size : -_CHECKSUM_BYTES]
    if _checksum(header_bytes, body) != view[-_CHECKSUM_BYTES:]:
        raise FrameError(Rejection.CHECKSUM)
    compression = compression_of(method, item_bytes)
    if compression is None:
        raise FrameError(Rejection.VERSION)
    header = FrameHeader(seal, compression, group, payload_bytes, namespace, digest)
    return _Parts(header, header_bytes, body)


def _revealed(
    header: FrameHeader, header_bytes: bytes, stored: memoryview, seal: Seal
) -> FrameBytes:
    if header.seal != seal.number:
        raise FrameError(Rejection.TENANT)
    try:
        return seal.reveal(header_bytes, stored)
    except SealError:
        raise FrameError(Rejection.TENANT) from None


def _payload(header: FrameHeader, body: FrameBytes) -> FrameBytes:
    try:
        return header.compression.decompress(body, header.payload_bytes)
    except CompressionError:
        raise FrameError(Rejection.LENGTH) from None


def _checksum(header: bytes, body: FrameBytes) -> bytes:
    checksum = xxhash.xxh3_128(header)
    checksum.update(body)
    return checksum.digest()
