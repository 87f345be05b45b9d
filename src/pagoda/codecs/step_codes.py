"""Whole numbers, most of them small, in as few bytes as zstd's tables make of them.

Which numbers are how large on average is known beforehand, so those that are alike are a class and
share a table:

    scarce    three values, five of them a byte        numbers that hardly vary
    common    a byte each                              numbers that do
    beyond    where, and what: 8 bytes                 what neither holds, of all classes

Nothing is clipped: a number that was not expected takes more bytes and is right.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np
import zstandard

from pagoda.kernels.array import Array

_BOUNDS = np.array([0.15, 0.25, 0.4, 0.6, 0.9, 1.3, 2.0, 3.5, 7.0, 14.0])
"""Root mean squares between classes."""
_NUM_SCARCE = 5
"""Classes of three values: those below 0.9."""
_DIGITS = 5
"""Of three values in a byte: 3 ** 5 is 243."""
_POWERS = 3 ** np.arange(_DIGITS, dtype=np.int64)
_LARGEST = 127
_MOST = 2**30
"""What a number is below."""
_LEVEL = 1
_HEAD = struct.Struct("<I")
_BEYOND = np.dtype([("place", "<u4"), ("value", "<i4")])


class StepCodesError(Exception):
    """Bytes that `StepCodes.pack` did not make."""


@dataclass(frozen=True, eq=False, slots=True)
class StepCodes:
    """For tokens of so many numbers each. Any thread may call it."""

    order: Array
    """[numbers] int64: the numbers of a token, class by class."""
    counts: tuple[int, ...]
    """Of each class, how many."""

    @classmethod
    def of(cls, rms: Array) -> StepCodes:
        """rms: [numbers] the root mean square that each is expected to have."""
        classes = np.searchsorted(_BOUNDS, rms)
        counts = np.bincount(classes, minlength=len(_BOUNDS) + 1)
        return cls(np.argsort(classes, kind="stable"), tuple(counts.tolist()))

    def pack(self, codes: Array) -> bytes:
        """codes: [tokens, numbers] float32 or integers, whole, magnitudes below 2 ** 30."""
        assert codes.shape[1] == len(self.order)
        ordered = codes[:, self.order].T.astype(np.int32)  # a number of all tokens together
        held = ordered.copy()
        parts, start = list[bytes](), 0
        for number, count in enumerate(self.counts):
            part = held[start : start + count]
            np.clip(part, -_largest(number), _largest(number), out=part)
            parts.append(_packed(_symbols(part.ravel(), number)))
            start += count
        flat = ordered.ravel()
        places = np.flatnonzero(flat != held.ravel())
        beyond = np.empty(len(places), _BEYOND)
        beyond["place"], beyond["value"] = places, flat[places]
        parts.append(_packed(beyond.view(np.uint8)))
        heads = b"".join(_HEAD.pack(len(part)) for part in parts)
        return b"".join((heads, *parts))

    def unpack(self, packed: memoryview, num_tokens: int) -> Array:
        """The codes again: [num_tokens, numbers] int32. Raises `StepCodesError`."""
        num_parts = len(self.counts) + 1
        if len(packed) < num_parts * _HEAD.size:
            raise StepCodesError("too short")
        heads = packed[: num_parts * _HEAD.size]
        lengths = [length for (length,) in _HEAD.iter_unpack(heads)]
        if len(heads) + sum(lengths) != len(packed):
            raise StepCodesError("lengths")
        flat = np.empty(len(self.order) * num_tokens, np.int32)
        start, place = len(heads), 0
        for number, count in enumerate(self.counts):
            size = count * num_tokens
            body = packed[start : start + lengths[number]]
            flat[place : place + size] = _numbers(body, size, number)
            start, place = start + lengths[number], place + size
        self._correct(flat, packed[start:])
        codes = np.empty((num_tokens, len(self.order)), np.int32)
        codes[:, self.order] = flat.reshape(len(self.order), num_tokens).T
        return codes

    @staticmethod
    def _correct(flat: Array, body: memoryview) -> None:
        """Write what is beyond its class where it belongs."""
        size = _content_size(body)
        if size % _BEYOND.itemsize or size > len(flat) * _BEYOND.itemsize:
            raise StepCodesError("beyond")
        beyond = np.frombuffer(_unpacked(body, size), _BEYOND)
        if len(beyond) and (np.diff(beyond["place"].astype(np.int64)) <= 0).any():
            raise StepCodesError("places")
        if len(beyond) and beyond["place"][-1] >= len(flat):
            raise StepCodesError("places")
        if (np.abs(beyond["value"].astype(np.int64)) >= _MOST).any():
            raise StepCodesError("values")
        flat[beyond["place"]] = beyond["value"]


def can_hold(codes: Array) -> bool:
    """All are finite and below what `pack` takes. codes: floating numbers."""
    return bool((np.abs(codes) < _MOST).all())


def _largest(number: int) -> int:
    return 1 if number < _NUM_SCARCE else _LARGEST


def _symbols(codes: Array, number: int) -> Array:
    """Bytes of a class's codes: [bytes] uint8"""
    if number >= _NUM_SCARCE:
        return codes.astype(np.int8).view(np.uint8)
    digits = np.ones(-(-len(codes) // _DIGITS) * _DIGITS, np.int64)
    digits[: len(codes)] = codes + 1
    return (digits.reshape(-1, _DIGITS) @ _POWERS).astype(np.uint8)


def _numbers(body: memoryview, size: int, number: int) -> Array:
    """`size` codes of a class."""
    if number >= _NUM_SCARCE:
        return np.frombuffer(_unpacked(body, size), np.int8)
    symbols = np.frombuffer(_unpacked(body, -(-size // _DIGITS)), np.uint8).astype(np.int64)
    if (symbols >= 3**_DIGITS).any():
        raise StepCodesError("digits")
    digits = symbols[:, None] // _POWERS % 3
    return digits.ravel()[:size] - 1


def _packed(symbols: Array) -> bytes:
    return zstandard.ZstdCompressor(level=_LEVEL).compress(symbols.tobytes())


def _unpacked(body: memoryview, size: int) -> bytes:
    """Exactly `size` bytes; no more memory than that is taken."""
    if _content_size(body) != size:
        raise StepCodesError("size")
    try:
        found = zstandard.ZstdDecompressor().decompress(body, allow_extra_data=False)
    except zstandard.ZstdError:
        raise StepCodesError("zstd") from None
    if len(found) != size:
        raise StepCodesError("size")
    return found


def _content_size(body: memoryview) -> int:
    try:
        return zstandard.get_frame_parameters(body).content_size
    except zstandard.ZstdError:
        raise StepCodesError("zstd") from None
