"""Where the tensors of a model directory lie, by the headers of its safetensors files.

A safetensors file is the length of its header (u64, little-endian), the header (JSON: name →
dtype, shape, first byte and end) and the bytes. Source: github.com/huggingface/safetensors,
"Format". Nothing here needs PyTorch: the planner reads headers too.
"""

from __future__ import annotations

import json
import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pagoda.errors import ModelError
from pagoda.models.config import read_json
from pagoda.models.mapped import map_file

INDEX_FILE = "model.safetensors.index.json"
SINGLE_FILE = "model.safetensors"

DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
"""The dtypes that are covered, and what PyTorch calls them."""
_ITEM_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
_LENGTH = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Where one tensor lies."""

    data: mmap.mmap
    dtype: str
    """As the header calls it: BF16."""
    shape: tuple[int, ...]
    start: int
    """In bytes, from the start of the file."""
    size_bytes: int


def stored_tensors(directory: Path) -> dict[str, StoredTensor]:
    """All tensors of a model directory: of one file, or of shards with an index.

    Raises `ModelError` naming the file or tensor where one is missing, truncated or damaged.
    """
    tensors: dict[str, StoredTensor] = {}
    for path in _tensor_files(directory):
        tensors |= _read_header(path)
    return tensors


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
        if dtype in _ITEM_BYTES:
            sound = sound and end - first == num_values * _ITEM_BYTES[dtype]
    except (KeyError, TypeError, ValueError) as error:
        raise ModelError(f"{path.name} {name}", entry, "is no valid header entry") from error
    if not sound:
        raise ModelError(f"{path.name} {name}", entry, "its bytes do not match dtype and shape")
    return StoredTensor(data, dtype, shape, body + first, end - first)
