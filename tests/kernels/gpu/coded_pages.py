"""Vectors in a cache of codes for the tests of kernels, and the plain truth of what is kept."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from pagoda.codecs import Codec, VectorCodec, codec_of
from pagoda.execution.gpu.layer_codes import page_codes
from pagoda.kernels.array import Array
from pagoda.kernels.gpu.code_form import PageCodes
from pagoda.kernels.page_layout import coded_layout
from pagoda.kernels.vector_code import VectorCode, unpack
from triton_device import DEVICE


@dataclass(frozen=True, slots=True)
class CodedShape:
    """What one layer's heads and blocks are like."""

    name: str
    """Of its codec."""
    head_dim: int
    group_size: int
    num_kv_heads: int
    block_size: int

    @property
    def codec(self) -> Codec:
        codec = codec_of(self.name)
        assert codec is not None
        return codec

    @property
    def num_heads(self) -> int:
        """Heads of queries."""
        return self.group_size * self.num_kv_heads

    def codes(self) -> PageCodes:
        """As an executor makes them."""
        return page_codes(self.codec, self.num_kv_heads, self.head_dim, self.block_size, DEVICE)


@dataclass(frozen=True, slots=True)
class Kept:
    """What blocks hold of keys, or of values: [num_blocks, num_kv_heads, block_size, …]."""

    codes: Array
    scales: Array
    offsets: Array


def kept(shape: CodedShape, blocks: torch.Tensor) -> tuple[Kept, Kept]:
    """Keys and values in blocks, [num_blocks, bytes] uint8, read by the layout."""
    codec, heads, size = shape.codec, shape.num_kv_heads, shape.block_size
    key, value = codec.key.code(shape.head_dim), codec.value.code(shape.head_dim)
    layout = coded_layout(heads, size, key, value)
    content = blocks.cpu().numpy()
    assert content.shape[1] == layout.block_bytes
    sides = (
        (codec.key, 0, layout.key_scales), (codec.value, layout.values, layout.value_scales),
    )  # fmt: skip
    return tuple(_kept(side, shape, content, *places) for side, *places in sides)  # type: ignore[return-value]


def _kept(side: VectorCodec, shape: CodedShape, content: Array, start: int, scales: int) -> Kept:
    code, heads, size = side.code(shape.head_dim), shape.num_kv_heads, shape.block_size
    count = heads * size * code.code_bytes
    packed = content[:, start : start + count].reshape(-1, heads, size, code.code_bytes)
    codes = unpack(code, chunk_by_chunk(code, packed))
    ones = np.ones(codes.shape[:-1], np.float32)
    if code.scale is None:
        return Kept(codes, ones, 0 * ones)
    beside = content[:, scales : scales + heads * size * code.scale_bytes]
    numbers = np.ascontiguousarray(beside).view(code.scale).astype(np.float32)
    numbers = numbers.reshape(-1, heads, 1 + code.has_offset, size)
    return Kept(codes, numbers[:, :, 0], numbers[:, :, 1] if code.has_offset else 0 * ones)


def chunk_by_chunk(code: VectorCode, packed: Array) -> Array:
    """Bytes of vectors, [..., code_bytes], from the order of devices to that of `VectorCode`."""
    parts = []
    for run in code.runs:
        end = run.start
        planes = []
        for plane in code.planes(run.width):
            start, end = end, end + run.num_chunks * plane.num_bytes
            read = packed[..., start:end]
            planes.append(read.reshape(*read.shape[:-1], run.num_chunks, plane.num_bytes))
        if planes:
            parts.append(np.concatenate(planes, -1).reshape(*packed.shape[:-1], end - run.start))
    return np.concatenate(parts, -1)
