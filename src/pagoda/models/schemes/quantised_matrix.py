"""A matrix as codes with a scale for each group of them, whichever scheme stores it so.

    number = scale · (code − zero point)

computed in float32. `blocks` loses nothing of that: each block has a group's scale and codes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from pagoda.errors import ModelError
from pagoda.kernels.block_types import CODES, SCALE_BYTES, GroupedType
from pagoda.models.mapped import release_pages
from pagoda.models.schemes.coding import Coding
from pagoda.models.stored_tensors import StoredTensor

Bytes = npt.NDArray[np.uint8]
Values = npt.NDArray[np.float32]

_LARGEST = 2.0**100
"""Scales beyond, or below its inverse, would leave the numbers of bfloat16."""


@dataclass(frozen=True, slots=True)
class GroupedRows:
    """Some rows."""

    codes: Bytes
    """[rows, bytes], as `CODES` says: in order, of 4 bits from the lowest of the first byte on."""
    scales: npt.NDArray[Any]
    """[rows, groups]: float16, float32 or the bits of bfloat16."""
    zeros: Bytes | None = None
    """[rows, groups]: zero points."""


@dataclass(frozen=True, slots=True)
class QuantisedMatrix:
    """A weight [out, in]."""

    name: str
    shape: tuple[int, int]
    coding: Coding
    tensors: tuple[StoredTensor, ...]
    """What it consists of in its files."""
    scales: str
    """The tensor that its scales are in."""
    rows: Callable[[int, int], GroupedRows]
    """`count` rows from row `first` on, which is a multiple of 32."""
    groups: npt.NDArray[np.int64] | None = None
    """The group of each number of a row, where they do not follow each other."""
    plain_shape: tuple[int, ...] | None = None
    """Of the plain tensor in its place, where that is none [rows, columns]."""

    @property
    def type(self) -> str:
        """The type of its blocks, or, where there is none that it fits, a name of how it is."""
        if self.groups is not None:
            return f"{self.coding.code}_{self.coding.scale}_act_order"
        return self.coding.type(self.shape[1])

    @property
    def nbytes(self) -> int:
        """Bytes in the files."""
        return sum(tensor.size_bytes for tensor in self.tensors)

    def blocks(self, first: int, count: int) -> Bytes:
        """Rows in blocks of its type, [count, bytes of a row]; see `values` for what is raised."""
        rows, kind = self._checked_rows(first, count), self.coding.block_type(self.shape[1])
        assert kind is not None
        num_blocks = self.shape[1] // kind.group
        repeats = min(self.coding.group // kind.group, num_blocks)
        blocks = np.empty((count, num_blocks), _fields(kind))

        def of_blocks(of_groups: npt.NDArray[Any]) -> npt.NDArray[Any]:
            found = np.repeat(of_groups, repeats, axis=1)[:, :num_blocks]
            return np.ascontiguousarray(found).view(f"V{found.itemsize}")

        blocks["scale"] = of_blocks(rows.scales)
        if rows.zeros is not None:
            blocks["zero"] = of_blocks(rows.zeros)
        blocks["codes"] = np.ascontiguousarray(rows.codes).view(blocks.dtype["codes"])
        return blocks.view(np.uint8)

    def values(self, first: int, count: int) -> Values:
        """Rows de-quantised, [count, in].

        Raises `ModelError` for a scale that is not finite, or so large or small that numbers would
        be no bfloat16, and for a float8 that is no number.
        """
        rows = self._checked_rows(first, count)
        numbers = _NUMBERS[self.coding.code][rows.codes].reshape(count, -1)[:, : self.shape[1]]
        if rows.zeros is not None:
            zeros = rows.zeros.view(np.int8) if self.coding.code == "uint8" else rows.zeros
            numbers = numbers - self._of_each_number(zeros)
        return numbers * self._of_each_number(_floats(rows.scales))

    def release(self) -> None:
        """Give the files' pages back."""
        for tensor in self.tensors:
            release_pages(tensor.data, tensor.start, tensor.size_bytes)

    def _of_each_number(self, of_groups: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """[rows, groups] → [rows, in]."""
        if self.groups is not None:
            return of_groups[:, self.groups]
        width = self.shape[1]
        return np.repeat(of_groups, min(self.coding.group, width), axis=1)[:, :width]

    def _checked_rows(self, first: int, count: int) -> GroupedRows:
        rows = self.rows(first, count)
        scales = _floats(rows.scales)
        size = np.abs(scales)
        is_good = (size == 0) | ((size >= 1 / _LARGEST) & (size <= _LARGEST))
        if not is_good.all():
            limit = "a scale must be finite, and 0 or of a size from 2**-100 to 2**100"
            raise ModelError(self.scales, float(scales[~is_good][0]), limit)
        if self.coding.code == "e4m3" and np.any(rows.codes & 0x7F == 0x7F):
            raise ModelError(self.name, self.type, "all of it must be numbers, but some is NaN")
        return rows


def _fields(kind: GroupedType) -> list[tuple[str, str]]:
    """What a block consists of, for NumPy."""
    code = CODES[kind.code]
    sizes = {
        "scale": SCALE_BYTES[kind.scale],
        "zero": int(code.has_zero),
        "codes": kind.group * code.bits // 8,
    }
    return [(name, f"V{size}") for name, size in sizes.items() if size]


def _floats(scales: npt.NDArray[Any]) -> Values:
    """Scales as float32."""
    if scales.dtype == np.uint16:
        return (scales.astype(np.uint32) << 16).view(np.float32)
    return scales.astype(np.float32, copy=False)


def _small_floats() -> Values:
    """float8 e4m3 by its bits; those that are no numbers as if they were."""
    codes = np.arange(256)
    exponent, fraction = codes >> 3 & 15, codes & 7
    size = np.where(exponent, 8 + fraction, fraction) * 2.0 ** (np.maximum(exponent, 1) - 10)
    return np.where(codes >> 7, -size, size).astype(np.float32)


def _numbers(code: str) -> Values:
    """What bytes of codes stand for: [256], or [256, 2] where there are two in each."""
    if code == "e4m3":
        return _small_floats()
    if CODES[code].bits == 8:
        return np.arange(256, dtype=np.uint8).view(np.int8).astype(np.float32)
    whole = range(-8, 8) if code == "int4" else range(16)
    table = np.array(CODES[code].table or whole, np.float32)
    both = np.arange(256)
    return np.stack([table[both & 15], table[both >> 4]], axis=1)


_NUMBERS = MappingProxyType({code: _numbers(code) for code in CODES})
