"""Reading GGUF files: metadata, the table of tensors, and de-quantised rows.

Layout (github.com/ggml-org/ggml, docs/gguf.md), little-endian:

    "GGUF" version:u32 num_tensors:u64 num_entries:u64
    num_entries × (key:string type:u32 value)
    num_tensors × (name:string num_dims:u32 dims:u64[num_dims] type:u32 offset:u64)
    padding to general.alignment, then the tensors, each at its offset

A string is its length:u64 and UTF-8 bytes. The file is memory-mapped, and the pages of a tensor
are given back once it is read, so that reading never holds more than one tensor of it.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

from pagoda.errors import ModelError, UnsupportedModelError
from pagoda.models.mapped import map_file, release_pages

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_DEFAULT_ALIGNMENT = 32

_STRING, _ARRAY = 8, 9
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q"}
_SCALARS |= {12: "d"}
_UINT32 = struct.Struct("<I")
_UINT64 = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class GGUFTensor:
    """Where one tensor lies and how its numbers are stored."""

    name: str
    shape: tuple[int, ...]
    """Row-major, [out, in]: the reverse of the order in the file."""
    type: GGMLQuantizationType
    offset: int
    """From the start of the file, in bytes."""

    @property
    def row_bytes(self) -> int:
        """Bytes of one row, quantisation blocks included."""
        values, size_bytes = GGML_QUANT_SIZES[self.type]
        return self.shape[-1] // values * size_bytes

    @property
    def size_bytes(self) -> int:
        """Bytes in the file."""
        return math.prod(self.shape[:-1]) * self.row_bytes


class GGUFFile:
    """A GGUF file, opened and checked: every tensor it lists lies inside it.

    `metadata` and `tensors` are read at once. Raises `ModelError` naming the file where it is not
    GGUF, is truncated or contradicts itself.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._data = map_file(path)
        reader = _Reader(self._data, path.name)
        metadata, tensors = reader.read()
        self.metadata: Mapping[str, Any] = MappingProxyType(metadata)
        self.tensors: Mapping[str, GGUFTensor] = MappingProxyType(tensors)

    def read_rows(self, name: str, first: int, num_rows: int) -> npt.NDArray[np.float32]:
        """Rows of a tensor as float32, [num_rows, columns]; a vector is one row.

        Raises `UnsupportedModelError` for a quantisation that cannot be undone.
        """
        tensor = self.tensors[name]
        start = tensor.offset + first * tensor.row_bytes
        size_bytes = num_rows * tensor.row_bytes
        stored = np.frombuffer(self._data, dtype=np.uint8, count=size_bytes, offset=start)
        try:
            rows = dequantize(stored.reshape(num_rows, tensor.row_bytes), tensor.type)
        except NotImplementedError as error:
            raise UnsupportedModelError(
                name, tensor.type.name, "this quantisation is not covered"
            ) from error
        return rows

    def release(self, name: str) -> None:
        """Give the pages of a tensor back."""
        tensor = self.tensors[name]
        release_pages(self._data, tensor.offset, tensor.size_bytes)


class _Reader:
    """A position in the file that only moves forward, and never past the end."""

    def __init__(self, data: mmap.mmap, name: str) -> None:
        self._data = data
        self._name = name
        self._at = 0

    def read(self) -> tuple[dict[str, Any], dict[str, GGUFTensor]]:
        """The metadata and the tensors by name."""
        try:
            return self._read()
        except (struct.error, UnicodeDecodeError, OverflowError, RecursionError) as error:
            raise self._broken("is truncated or damaged in its metadata") from error

    def _read(self) -> tuple[dict[str, Any], dict[str, GGUFTensor]]:
        if self._take(4) != _MAGIC:
            raise self._broken("does not start with GGUF, so it is no GGUF file")
        version = self._uint32()
        if version not in _VERSIONS:
            raise ModelError(f"{self._name} version", version, f"covered are {_VERSIONS}")
        num_tensors, num_entries = self._uint64(), self._uint64()
        metadata: dict[str, Any] = {}
        for _ in range(num_entries):
            key = self._string()
            metadata[key] = self._value(self._uint32())
        listed = [self._tensor_entry() for _ in range(num_tensors)]
        alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
        if type(alignment) is not int or alignment < 1:
            raise ModelError("general.alignment", alignment, "must be at least 1")
        start = -(-self._at // alignment) * alignment
        tensors = (self._tensor(start, *entry) for entry in listed)
        return metadata, {tensor.name: tensor for tensor in tensors}

    def _tensor_entry(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self._string()
        dims = tuple(self._uint64() for _ in range(self._uint32()))
        return name, dims[::-1], self._uint32(), self._uint64()

    def _tensor(
        self, start: int, name: str, shape: tuple[int, ...], type_id: int, offset: int
    ) -> GGUFTensor:
        try:
            quantisation = GGMLQuantizationType(type_id)
        except ValueError as error:
            raise UnsupportedModelError(f"{name} type", type_id, "is no known GGML type") from error
        if not shape or shape[-1] % GGML_QUANT_SIZES[quantisation][0]:
            raise ModelError(name, shape, f"its rows are not whole blocks of {quantisation.name}")
        tensor = GGUFTensor(name, shape, quantisation, start + offset)
        end = tensor.offset + tensor.size_bytes
        if end > len(self._data):
            raise self._broken(f"is truncated: tensor {name} ends at byte {end:,}")
        return tensor

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            return self._array(self._uint32(), self._uint64())
        return self._scalars(kind, 1)[0]

    def _array(self, kind: int, length: int) -> list[Any]:
        if kind == _STRING:
            return self._strings(length)
        if kind == _ARRAY:
            return [self._value(_ARRAY) for _ in range(length)]
        return list(self._scalars(kind, length))

    def _scalars(self, kind: int, length: int) -> tuple[Any, ...]:
        if kind not in _SCALARS:
            raise self._broken(f"has metadata of the unknown type {kind}")
        layout = struct.Struct(f"<{length}{_SCALARS[kind]}")
        values = layout.unpack_from(self._data, self._at)
        self._at += layout.size
        return values

    def _strings(self, length: int) -> list[str]:
        # the vocabulary comes through here: a tight loop, for it is most of the file's metadata
        data, at, size_of = self._data, self._at, _UINT64.unpack_from
        strings = []
        for _ in range(length):
            start = at + 8
            at = start + size_of(data, at)[0]
            if at > len(data):
                raise self._broken("is truncated in a list of strings")
            strings.append(str(data[start:at], "utf-8"))
        self._at = at
        return strings

    def _string(self) -> str:
        return str(self._take(self._uint64()), "utf-8")

    def _uint32(self) -> int:
        return int(_UINT32.unpack(self._take(4))[0])

    def _uint64(self) -> int:
        return int(_UINT64.unpack(self._take(8))[0])

    def _take(self, length: int) -> bytes:
        end = self._at + length
        if end > len(self._data):
            raise self._broken(f"is truncated: its metadata goes on past byte {end:,}")
        taken = self._data[self._at : end]
        self._at = end
        return taken

    def _broken(self, limit: str) -> ModelError:
        return ModelError(self._name, f"{len(self._data):,} bytes", limit)
