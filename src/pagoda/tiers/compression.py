"""Compression without loss: the bytes of numbers sorted into planes, then zstd.

The high bytes of bfloat16 numbers, sign and exponent, are much alike; the low ones are noise. One
plane of all high bytes compresses, and the other one hardly; mixed, neither does.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from pagoda.tiers.tier import FrameBytes

_LEVEL = 1
"""Levels below it leave literals uncoded, and of these there is little else."""
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

        body = zstandard.ZstdCompressor(level=_LEVEL).compress(to_planes(payload, self.item_bytes))
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
        return from_planes(planes, self.item_bytes)


NO_COMPRESSION = Compression()


def compression_of(method: int, item_bytes: int) -> Compression | None:
    """What a header says; None where it is none."""
    if method not in set(Method) or not 1 <= item_bytes <= _LARGEST_ITEM:
        return None
    return Compression(Method(method), item_bytes)


def to_planes(payload: FrameBytes, item_bytes: int) -> FrameBytes:
    """First bytes of all items, then all second ones, …; what is over at the end stays there."""
    if item_bytes == 1:
        return payload
    items = np.frombuffer(payload, np.uint8)
    planes = items.copy()
    for number, plane in enumerate(_each_plane(planes, item_bytes)):
        plane[:] = items[number : item_bytes * len(plane) : item_bytes]
    return planes.data


def from_planes(planes: FrameBytes, item_bytes: int) -> FrameBytes:
    """What `to_planes` was given."""
    if item_bytes == 1:
        return planes
    sorted_bytes = np.frombuffer(planes, np.uint8)
    items = sorted_bytes.copy()
    for number, plane in enumerate(_each_plane(sorted_bytes, item_bytes)):
        items[number : item_bytes * len(plane) : item_bytes] = plane
    return items.data


def _each_plane(planes: NDArray[np.uint8], item_bytes: int) -> NDArray[np.uint8]:
    """[item_bytes, whole items], a view."""
    num_items = len(planes) // item_bytes
    return planes[: num_items * item_bytes].reshape(item_bytes, num_items)
