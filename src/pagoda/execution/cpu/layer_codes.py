"""What kernels need to know of a layer's codec: their form, tables and matrices."""

from __future__ import annotations

import numpy as np

from pagoda.codecs import Codec, VectorCodec
from pagoda.kernels.array import Array
from pagoda.kernels.cpu.page_form import PageForm
from pagoda.kernels.cpu.pages import NO_CODES, CodeFields
from pagoda.kernels.cpu.vector import UNIT
from pagoda.storage.cpu_storage import CPULayer


def page_form(layer: CPULayer, *, is_paired: bool) -> PageForm:
    """Codes are multiplied as bfloat16 where the model computes in it and a CPU multiplies pairs of
    it; else, and in blocks of odd size, as float32.

    is_paired: the model's weights and activations are bfloat16.
    """
    codec, size, block_size = layer.codec, layer.head_size, layer.block_size
    if codec is None:
        return PageForm(layer.array.dtype == np.uint16, size, block_size)
    paired = is_paired and UNIT.pairs and block_size % 2 == 0
    return PageForm(paired, size, block_size, codec.key.code(size), codec.value.code(size))


def fits(codec: Codec | None) -> tuple[str, str]:
    """How the scales of keys and of values are chosen."""
    return ("", "") if codec is None else (codec.key.fit, codec.value.fit)


def code_fields(layer: CPULayer, kept: list[Array]) -> CodeFields:
    """Addresses of a codec's tables and matrices, which are added to `kept`."""
    if layer.codec is None:
        return NO_CODES

    def address(values: Array) -> int:
        kept.append(np.ascontiguousarray(values))
        return int(kept[-1].ctypes.data)

    def tables(codec: VectorCodec) -> tuple[int, int]:
        if codec.levels is None:
            return 0, 0
        levels, bounds = codec.levels.for_kernels()
        return address(of_each_head(levels)), address(of_each_head(bounds))

    def of_each_head(values: Array) -> Array:
        return np.broadcast_to(values, (layer.num_kv_heads, *values.shape))

    def turn(matrix: Array | None) -> int:
        return 0 if matrix is None else address(of_each_head(matrix))

    key, value = layer.codec.key, layer.codec.value
    key_matrix, value_matrix = key.matrix(layer.head_size), value.matrix(layer.head_size)
    key_turn, value_turn = turn(key_matrix), turn(value_matrix)
    return CodeFields(
        *tables(key),
        *tables(value),
        query_turn=key_turn,
        key_turn=key_turn,
        value_turn=value_turn,
        output_turn=turn(None if value_matrix is None else value_matrix.T),
    )
