"""The header of a GGUF file, held against the file before anything is made of it.

Layout (github.com/ggml-org/ggml, docs/gguf.md), little-endian:

    "GGUF" version:u32 num_tensors:u64 num_entries:u64
    num_entries × (key:string type:u32 value)
    num_tensors × (name:string num_dims:u32 dims:u64[num_dims] type:u32 offset:u64)
    padding to general.alignment, then the tensors, each at its offset

A string is its length:u64 and UTF-8 bytes. A file may come from anybody. So every count and length
has a limit many times what real models have, nothing is allocated by a number that the file states,
and tensors must lie inside the file without overlapping.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise

from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from pagoda.errors import ModelError, UnsupportedModelError
from pagoda.models.gguf_values import ARRAY, SCALARS, STRING, GGUFMetadata, StoredValue
from pagoda.models.tensor_names import MOST_TENSORS, require_name

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_DEFAULT_ALIGNMENT = 32
_ALIGNMENT = "general.alignment"

MOST_HEADER_BYTES = 2**25
"""Twice the largest vocabularies."""
MOST_ENTRIES = 2**12
MOST_STRINGS = 800_000
"""In all arrays together. Tokens and merges of the largest vocabulary, Gemma 3's, are 777,050."""
MOST_NUMBERS = 2**20
"""In one array."""
MOST_DIMS = 4
"""As many as ggml has."""

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

    @property
    def end(self) -> int:
        """Where it ends, in bytes from the start of the file."""
        return self.offset + self.size_bytes


@dataclass(frozen=True, slots=True)
class GGUFHeader:
    """What a file says before its tensors."""

    metadata: GGUFMetadata
    tensors: Mapping[str, GGUFTensor]


def read_header(data: mmap.mmap, name: str) -> GGUFHeader:
    """The header of a mapped file called `name`.

    Raises `ModelError` naming the file, or the field in it, where it is not GGUF, is truncated,
    contradicts itself or passes a limit.
    """
    return _HeaderReader(data, name).read()


class _HeaderReader:
    """A position in the file that only moves forward, and never past the end."""

    def __init__(self, data: mmap.mmap, name: str) -> None:
        self._data = data
        self._name = name
        self._end = min(len(data), MOST_HEADER_BYTES)
        self._at = 0
        self._num_strings = 0

    def read(self) -> GGUFHeader:
        if self._take(4) != _MAGIC:
            raise self._broken("does not start with GGUF, so it is no GGUF file")
        version = self._uint32()
        if version not in _VERSIONS:
            raise ModelError(f"{self._name} version", version, f"covered are {_VERSIONS}")
        num_tensors = self._count("number of tensors", MOST_TENSORS)
        num_entries = self._count("number of metadata entries", MOST_ENTRIES)
        metadata = GGUFMetadata(self._data, self._entries(num_entries))
        tensors = self._tensors(num_tensors, metadata)
        self._require_apart(tensors.values())
        return GGUFHeader(metadata, tensors)

    def _entries(self, num_entries: int) -> dict[str, StoredValue]:
        values: dict[str, StoredValue] = {}
        for _ in range(num_entries):
            key = self._key("metadata key")
            if key in values:
                raise self._twice("metadata key", key)
            values[key] = self._value(key)
        return values

    def _value(self, key: str) -> StoredValue:
        """Where the next value lies; goes on behind it."""
        kind = self._uint32()
        if kind != ARRAY:
            stored = StoredValue(kind, None, self._at)
            self._skip(key, kind, 1)
            return stored
        kind, length = self._uint32(), self._uint64()
        if kind != STRING and length > MOST_NUMBERS:
            raise ModelError(f"{self._name} {key}", length, f"at most {MOST_NUMBERS:,} numbers")
        stored = StoredValue(kind, length, self._at)
        self._skip(key, kind, length)
        return stored

    def _skip(self, key: str, kind: int, length: int) -> None:
        if kind == STRING:
            self._skip_strings(key, length)
        elif kind in SCALARS:
            self._at = self._behind(length * struct.calcsize(f"<{SCALARS[kind]}"))
        elif kind == ARRAY:
            raise UnsupportedModelError(f"{self._name} {key}", "array", "arrays hold no arrays")
        else:
            raise self._broken(f"{key} is of the unknown type {kind}")

    def _skip_strings(self, key: str, length: int) -> None:
        self._num_strings += length
        if self._num_strings > MOST_STRINGS:
            limit = f"at most {MOST_STRINGS:,} strings in all"
            raise ModelError(f"{self._name} {key}", length, limit)
        # a tight loop: it walks over every token and merge; one that leads out ends it
        data, at, size_of = self._data, self._at, _UINT64.unpack_from
        try:
            for _ in range(length):
                at += 8 + size_of(data, at)[0]
        except (struct.error, OverflowError) as error:
            raise self._truncated(at) from error
        self._at = self._behind(at - self._at)

    def _tensors(self, num_tensors: int, metadata: GGUFMetadata) -> dict[str, GGUFTensor]:
        entries = [self._tensor_entry() for _ in range(num_tensors)]
        alignment = _alignment(metadata)
        start = -(-self._at // alignment) * alignment
        tensors: dict[str, GGUFTensor] = {}
        for name, shape, type_id, offset in entries:
            if name in tensors:
                raise self._twice("tensor", name)
            if offset % alignment:
                limit = f"its offset must be a multiple of {_ALIGNMENT}, {alignment}"
                raise ModelError(name, offset, limit)
            tensor = GGUFTensor(name, shape, _type(name, type_id, shape), start + offset)
            if tensor.end > len(self._data):
                raise self._broken(f"is truncated: tensor {name} ends at byte {tensor.end:,}")
            tensors[name] = tensor
        return tensors

    def _tensor_entry(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self._key("tensor")
        num_dims = self._uint32()
        if not 1 <= num_dims <= MOST_DIMS:
            raise ModelError(name, f"{num_dims} dimensions", f"must have 1 to {MOST_DIMS}")
        dims = tuple(self._uint64() for _ in range(num_dims))
        return name, dims[::-1], self._uint32(), self._uint64()

    def _require_apart(self, tensors: Iterable[GGUFTensor]) -> None:
        in_order = sorted(tensors, key=lambda tensor: tensor.offset)
        for before, after in pairwise(in_order):
            if before.end > after.offset:
                limit = f"overlaps with {before.name}, which ends at byte {before.end:,}"
                raise ModelError(after.name, f"byte {after.offset:,}", limit)

    def _count(self, what: str, most: int) -> int:
        count = self._uint64()
        if count > most:
            raise ModelError(f"{self._name} {what}", count, f"at most {most:,}")
        return count

    def _key(self, what: str) -> str:
        stored = self._take(self._uint64())
        try:
            key = stored.decode()
        except UnicodeDecodeError as error:
            raise ModelError(f"{self._name} {what}", stored, "must be text in UTF-8") from error
        require_name(f"{self._name} {what}", key)
        return key

    def _uint32(self) -> int:
        return int(_UINT32.unpack(self._take(4))[0])

    def _uint64(self) -> int:
        return int(_UINT64.unpack(self._take(8))[0])

    def _take(self, size_bytes: int) -> bytes:
        start, self._at = self._at, self._behind(size_bytes)
        return self._data[start : self._at]

    def _behind(self, size_bytes: int) -> int:
        end = self._at + size_bytes
        if end > self._end:
            raise self._truncated(end)
        return end

    def _truncated(self, end: int) -> ModelError:
        if self._end < len(self._data):
            return self._broken(f"its metadata must end within {MOST_HEADER_BYTES:,} bytes")
        return self._broken(f"is truncated: its metadata goes on past byte {min(end, self._end):,}")

    def _twice(self, what: str, name: str) -> ModelError:
        return ModelError(f"{self._name} {what}", name, "is there twice")

    def _broken(self, limit: str) -> ModelError:
        return ModelError(self._name, f"{len(self._data):,} bytes", limit)


def _alignment(metadata: GGUFMetadata) -> int:
    alignment = metadata.get(_ALIGNMENT, _DEFAULT_ALIGNMENT)
    if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1):
        raise ModelError(_ALIGNMENT, alignment, "must be a power of two")
    return alignment


def _type(name: str, type_id: int, shape: tuple[int, ...]) -> GGMLQuantizationType:
    """How the numbers are stored, which the shape must suit."""
    try:
        quantisation = GGMLQuantizationType(type_id)
    except ValueError as error:
        raise UnsupportedModelError(f"{name} type", type_id, "is no known GGML type") from error
    if 0 in shape:
        raise ModelError(name, shape, "must hold numbers in every dimension")
    if shape[-1] % GGML_QUANT_SIZES[quantisation][0]:
        raise ModelError(name, shape, f"its rows are not whole blocks of {quantisation.name}")
    return quantisation
