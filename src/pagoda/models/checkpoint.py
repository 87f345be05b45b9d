"""Reading safetensors: one file or shards with an index, memory-mapped.

A safetensors file is the length of its header (u64, little-endian), the header (JSON: name →
dtype, shape, first byte and end) and the bytes. It is read here directly because the pages of a
tensor have to be given back once it is copied: else a loading process would hold the whole file
beside its copy. Source: github.com/huggingface/safetensors, "Format".
"""

from __future__ import annotations

import json
import math
import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from pagoda.errors import ModelError, UnsupportedModelError
from pagoda.models.config import read_json
from pagoda.models.mapped import map_file, release_pages
from pagoda.models.rows import copy_rows

INDEX_FILE = "model.safetensors.index.json"
SINGLE_FILE = "model.safetensors"

_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
}
_CHUNK_BYTES = 1 << 25
"""What is copied before its pages are given back."""
_LENGTH = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Where one tensor lies."""

    data: mmap.mmap
    dtype: str
    shape: tuple[int, ...]
    start: int
    """In bytes, from the start of the file."""
    size_bytes: int


class SafetensorsCheckpoint:
    """All tensors of a model directory.

    Raises `ModelError` naming the file or tensor where one is missing, truncated or damaged.
    """

    def __init__(self, directory: Path) -> None:
        self._tensors: dict[str, StoredTensor] = {}
        for path in _tensor_files(directory):
            self._tensors |= _read_header(path)
        self.shapes: Mapping[str, tuple[int, ...]] = MappingProxyType(
            {name: tensor.shape for name, tensor in self._tensors.items()}
        )

    def dtype(self, name: str) -> str | None:
        """How a tensor's numbers are stored, in PyTorch's naming; None where it is not there."""
        if name not in self._tensors:
            return None
        stored = self._tensors[name].dtype
        return str(_DTYPES.get(stored, stored)).removeprefix("torch.")

    def read(self, name: str, target: torch.Tensor) -> None:
        """Copy a tensor into `target`, which has its shape, converting to its dtype."""
        tensor = self._tensors[name]
        dtype = _DTYPES.get(tensor.dtype)
        if dtype is None:
            raise UnsupportedModelError(name, tensor.dtype, f"covered are {', '.join(_DTYPES)}")
        stored = torch.frombuffer(
            tensor.data, dtype=dtype, count=math.prod(tensor.shape), offset=tensor.start
        ).view(tensor.shape)
        if tensor.size_bytes <= _CHUNK_BYTES:
            copy_rows(stored, target)
            release_pages(tensor.data, tensor.start, tensor.size_bytes)
            return
        row_bytes = tensor.size_bytes // tensor.shape[0]
        step = max(1, _CHUNK_BYTES // row_bytes)
        for first in range(0, tensor.shape[0], step):
            rows = stored[first : first + step]
            target[first : first + step].copy_(rows)
            release_pages(tensor.data, tensor.start + first * row_bytes, rows.nbytes)

    def read_rotary(self, name: str, target: torch.Tensor, head_dim: int) -> None:
        """Copy rows of q or k; here they are stored in the order they are used."""
        self.read(name, target)


def _tensor_files(directory: Path) -> list[Path]:
    """The safetensors files of a directory: those of the index, or model.safetensors, or the only.

    Beside model.safetensors others may lie that hold the same weights in another form.
    """
    index = directory / INDEX_FILE
    if not index.is_file():
        if (directory / SINGLE_FILE).is_file():
            return [directory / SINGLE_FILE]
        found = sorted(directory.glob("*.safetensors"))
        if len(found) != 1:
            raise ModelError(
                "model",
                str(directory),
                f"holds {len(found)} .safetensors files; {SINGLE_FILE} or {INDEX_FILE} is needed",
            )
        return found
    weight_map = read_json(index).get("weight_map")
    if type(weight_map) is not dict or not all(type(name) is str for name in weight_map.values()):
        raise ModelError(f"{INDEX_FILE} weight_map", weight_map, "must map tensors to files")
    paths = [directory / name for name in sorted(set(weight_map.values()))]
    for path in paths:
        if not path.is_file():
            raise ModelError("model", str(directory), f"lacks {path.name}, which its index names")
    return paths


def _read_header(path: Path) -> dict[str, StoredTensor]:
    """The tensors of one file, each checked to lie inside it."""
    data = map_file(path)
    size = f"{len(data):,} bytes"
    length = _LENGTH.unpack_from(data, 0)[0] if len(data) >= _LENGTH.size else 0
    body = _LENGTH.size + length
    if not length or body > len(data):
        raise ModelError(path.name, size, "is truncated: its header does not fit into it")
    try:
        header = json.loads(str(data[_LENGTH.size : body], "utf-8"))
    except ValueError as error:
        raise ModelError(path.name, size, "its header is damaged: not valid JSON") from error
    if type(header) is not dict:
        raise ModelError(path.name, size, "its header is damaged: not an object")
    header.pop("__metadata__", None)
    tensors = {name: _stored(path, data, body, name, entry) for name, entry in header.items()}
    end = max((tensor.start + tensor.size_bytes for tensor in tensors.values()), default=body)
    if end > len(data):
        raise ModelError(path.name, size, f"is truncated: its header promises {end:,} bytes")
    return tensors


def _stored(path: Path, data: mmap.mmap, body: int, name: str, entry: Any) -> StoredTensor:
    """One entry of the header."""
    try:
        dtype, shape = entry["dtype"], tuple(entry["shape"])
        first, end = entry["data_offsets"]
        num_values = math.prod(shape)
        sound = min((0, first, *shape)) == 0 and end >= first
        if dtype in _DTYPES:
            sound = sound and end - first == num_values * _DTYPES[dtype].itemsize
    except (KeyError, TypeError, ValueError) as error:
        raise ModelError(f"{path.name} {name}", entry, "is no valid header entry") from error
    if not sound:
        raise ModelError(f"{path.name} {name}", entry, "its bytes do not match dtype and shape")
    return StoredTensor(data, dtype, shape, body + first, end - first)
