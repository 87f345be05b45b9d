"""Where the tensors of a model directory lie, by the headers of its safetensors files.

A safetensors file is the length of its header (u64, little-endian), the header (JSON: name →
dtype, shape, first byte and end) and the bytes. Source: github.com/huggingface/safetensors,
"Format". A file may come from anybody, so its header is bounded and has to agree with the file to
the byte: tensors follow each other without a gap, and the last one ends where the file does.
Nothing here needs PyTorch: the planner reads headers too.
"""

from __future__ import annotations

import logging
import math
import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pagoda.errors import ModelError, UnsupportedModelError
from pagoda.models.json_file import JSONLimits, parse_json
from pagoda.models.mapped import map_file
from pagoda.models.tensor_files import (
    INDEX_FILE,
    SINGLE_FILE,
    gguf_left_aside,
    shards_left_aside,
    tensor_files,
)
from pagoda.models.tensor_names import require_name

logger = logging.getLogger("pagoda")

DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
"""The dtypes that are covered, and what PyTorch calls them."""
_ITEM_BITS = (
    dict.fromkeys(("F64", "I64", "U64", "C64"), 64)
    | dict.fromkeys(("F32", "I32", "U32"), 32)
    | dict.fromkeys(("F16", "BF16", "I16", "U16"), 16)
    | dict.fromkeys(("BOOL", "I8", "U8", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 8)
    | dict.fromkeys(("F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8)
    | {"F6_E2M3": 6, "F6_E3M2": 6, "F4": 4}
)
"""Every dtype of the format; a tensor that the model does not use may have any."""
HEADER_LIMITS = JSONLimits(most_values=2**18, names_twice=False)
MOST_TENSORS = 2**18
"""Of one model: those of 384 experts in 60 layers, with a scale each, are half of it."""
MOST_DIMS = 8
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

    Shards and GGUF files that are not read are told in the log. Raises `ModelError` naming the file
    or tensor where one is missing, truncated, damaged or there twice.
    """
    if shards := shards_left_aside(directory):
        told = "%s: %s is read, and not the %d files of %s beside it; remove those not meant"
        logger.warning(told, directory, SINGLE_FILE, len(shards), INDEX_FILE)
    paths = tensor_files(directory)
    if aside := gguf_left_aside(directory):
        told = "%s: the safetensors are read, and not %s beside them; to run it, name the file"
        logger.info(told, directory, ", ".join(path.name for path in aside))
    tensors: dict[str, StoredTensor] = {}
    for path in paths:
        found = _read_header(path)
        for name in found.keys() & tensors.keys():
            raise ModelError(f"{path.name} {name}", name, "another file holds it too")
        tensors |= found
        if len(tensors) > MOST_TENSORS:
            raise ModelError(path.name, len(tensors), f"at most {MOST_TENSORS:,} tensors in all")
    return tensors


def _read_header(path: Path) -> dict[str, StoredTensor]:
    """The tensors of one file, each checked to lie inside it."""
    data = map_file(path)
    size = f"{len(data):,} bytes"
    length = _LENGTH.unpack_from(data, 0)[0] if len(data) >= _LENGTH.size else 0
    body = _LENGTH.size + length
    if not length or body > len(data):
        raise ModelError(path.name, size, "is truncated: its header does not fit into it")
    if length > HEADER_LIMITS.most_bytes:
        limit = f"must be at most {HEADER_LIMITS.most_bytes:,} bytes"
        raise ModelError(f"{path.name} header", f"{length:,} bytes", limit)
    header = parse_json(data[_LENGTH.size : body], f"{path.name} header", size, HEADER_LIMITS)
    header.pop("__metadata__", None)
    tensors: dict[str, StoredTensor] = {}
    for name, entry in header.items():
        require_name(f"{path.name} tensor", name)
        tensors[name] = _stored(path, data, body, name, entry)
    _require_whole(path, size, tensors, body, len(data))
    return tensors


def _stored(path: Path, data: mmap.mmap, body: int, name: str, entry: Any) -> StoredTensor:
    """One entry of the header."""
    field = f"{path.name} {name}"
    if type(entry) is not dict:
        raise ModelError(field, entry, "is no valid header entry: must be an object")
    dtype = entry.get("dtype")
    shape, offsets = _sizes(entry.get("shape")), _sizes(entry.get("data_offsets"))
    if shape is None or offsets is None or len(offsets) != 2:
        limit = "shape and data_offsets must be whole numbers"
        raise ModelError(field, entry, f"is no valid header entry: {limit}")
    if type(dtype) is not str or dtype not in _ITEM_BITS:
        raise UnsupportedModelError(f"{field} dtype", dtype, f"covered are {', '.join(DTYPES)}")
    first, end = offsets
    if 8 * (end - first) != math.prod(shape) * _ITEM_BITS[dtype]:
        raise ModelError(field, entry, "its bytes do not match dtype and shape")
    return StoredTensor(data, dtype, shape, body + first, end - first)


def _sizes(values: Any) -> tuple[int, ...] | None:
    """A list of a few whole numbers from 0; None for anything else."""
    if type(values) is not list or len(values) > MOST_DIMS:
        return None
    if not all(type(value) is int and value >= 0 for value in values):
        return None
    return tuple(values)


def _require_whole(
    path: Path, size: str, tensors: Mapping[str, StoredTensor], body: int, file_end: int
) -> None:
    """The tensors fill the file behind its header, one after the other."""
    end = body
    for name, tensor in sorted(
        tensors.items(), key=lambda item: (item[1].start, item[1].size_bytes)
    ):
        if tensor.start != end:
            limit = f"must begin where the tensor before it ends, at byte {end - body:,}"
            raise ModelError(f"{path.name} {name}", f"byte {tensor.start - body:,}", limit)
        end += tensor.size_bytes
    if end > file_end:
        raise ModelError(path.name, size, f"is truncated: its header promises {end:,} bytes")
    if end < file_end:
        raise ModelError(path.name, size, f"goes on behind its last tensor, at byte {end:,}")
