"""Codes of a chunk of the keys of sixteen tokens, for CPUs with long tables."""

from __future__ import annotations

from typing import Any, Protocol

from pagoda.kernels.cpu.long_vectors import Order
from pagoda.kernels.cpu.path_pairs import PathKeys
from pagoda.kernels.cpu.plane_codes import PlaneKeys
from pagoda.kernels.vector_code import VectorCode


class ChunkKeys(Protocol):
    """Codes of a chunk of the keys of sixteen tokens."""

    def codes(self, number: int) -> Any:
        """Of numbers `number` to `number` + 3, a row each, [64] int8, or windows; what is above
        those bits that look up may be anything."""
        ...


def chunk_keys(
    builder: Any, code: VectorCode, width: int, first: Any, stride: int, order: Order
) -> ChunkKeys:  # fmt: skip
    """Of a chunk of that width; paths come lane by lane, whatever the order.

    first: pointer to the chunk's first byte of the first token; stride: bytes from a row of tokens
    to the next.
    """
    if code.is_path(width):
        return PathKeys(builder, width, first, stride)
    return PlaneKeys(builder, width, first, stride, order)
