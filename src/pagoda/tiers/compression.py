"""Compression without loss: the bytes of numbers sorted into planes, then zstd.

The high bytes of bfloat16 numbers, sign and exponent, are much alike; the low ones are noise. One
plane of all high bytes compresses, and the other one hardly; mixed, neither does.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from pagoda.tiers.tier import FrameBytes

_LEVEL = -1
_LARGEST_ITEM = 8


class CompressionError(Exception):
    """A body does not decompress to as many bytes as it should."""


class Method(IntEnum):
    """How a body is compressed, as headers write it."""

    NONE = 0
    ZSTD = 1
    """Byte planes of items, one behind the other, as one frame of zstd."""


@dataclass(frozen=True, slots=True)
class Compression:
    """A method, and how many bytes an item has whose bytes are sorted into planes."""

    method: Method = Method.NONE
    item_bytes: int = 1

    def compress(self, payload: FrameBytes) -> tuple[Compression, FrameBytes]:
        """A body and how it was made: as it is where compressing would make it no smaller."""
        if self.method is Method.NONE:
            return NO_COMPRESSION, payload
        import zstandard

        body = zstandard.ZstdCompressor(level=_LEVEL).compress(_planes(payload, self.item_bytes))
        return (self, body) if len(body) < len(payload) else (NO_COMPRESSION, payload)

    def decompress(self, body: FrameBytes, payload_bytes: int) -> FrameBytes:
        """The payload again, of exactly so many bytes; no more memory than that is taken.

        Raises `CompressionError` where that cannot be.
        """
        if self.method is Method.NONE:
            if len(body) != payload_bytes:
                raise CompressionError
            return body
        import zstandard

        try:
            claimed = zstandard.get_frame_parameters(body).content_size
            if claimed != payload_bytes:
                raise CompressionError
            planes = zstandard.ZstdDecompressor().decompress(body, allow_extra_data=False)
        except zstandard.ZstdError:
            raise CompressionError from None
        if len(planes) != payload_bytes:
            raise CompressionError
        return _items(planes, self.item_bytes)


NO_COMPRESSION = Compression()


def compression_of(method: int, item_bytes: int) -> Compression | None:
    """What a header says; None where it is none."""
    if method not in iter(Method) or not 1 <= item_bytes <= _LARGEST_ITEM:
        return None
    return Compression(Method(method), item_bytes)


def _planes(payload: FrameBytes, item_bytes: int) -> FrameBytes:
    """First bytes of all items, then all second ones, …; what is over at the end stays there."""
    if item_bytes == 1:
        return payload
    flat = np.frombuffer(payload, np.uint8)
    whole = len(flat) - len(flat) % item_bytes
    planes = np.empty(len(flat), np.uint8)
    planes[:whole].reshape(item_bytes, -1)[:] = flat[:whole].reshape(-1, item_bytes).T
    planes[whole:] = flat[whole:]
    return planes.data


def _items(planes: FrameBytes, item_bytes: int) -> FrameBytes:
    """What `_planes` was given."""
    if item_bytes == 1:
        return planes
    flat = np.frombuffer(planes, np.uint8)
    whole = len(flat) - len(flat) % item_bytes
    items = np.empty(len(flat), np.uint8)
    items[:whole].reshape(-1, item_bytes)[:] = flat[:whole].reshape(item_bytes, -1).T
    items[whole:] = flat[whole:]
    return items.data
