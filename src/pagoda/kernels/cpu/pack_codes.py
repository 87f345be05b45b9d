"""The bytes of a vector's codes, to where a block has them."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types

from pagoda.kernels.cpu.number import constant, emitted
from pagoda.kernels.cpu.vector import (
    BYTE,
    I32,
    combine_lanes,
    index,
    store_vector,
)
from pagoda.kernels.cpu.vector_chunks import chunk_of
from pagoda.kernels.vector_code import CHUNK, Plane, VectorCode

_WORD = ir.IntType(64)


@emitted
def pack_codes(
    typing: Any, codes: Any, out: Any, token: Any, block_size: Any, by_token: Any, code: Any
) -> Any:
    """Write codes, whole numbers in [head_size] float32, as vector `token` of a block.

    out: the codes of the block's vectors, [code_bytes, block_size]; or, `by_token`, of each plane
    of each chunk in turn [block_size, bytes of the plane]. code: of a `VectorCode`, a constant.
    """
    vector_code = VectorCode.of_text(code.literal_value)

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        target = builder.inttoptr(args[1], BYTE.as_pointer())
        token, block_size, by_token = args[2:5]
        parts: list[tuple[int, Any]] = []
        start = 0
        for chunk, width in enumerate(vector_code.widths):
            read = chunk_of(builder, args[0], chunk)
            numbers = builder.trunc(
                builder.fptosi(read, ir.VectorType(I32, CHUNK)), ir.VectorType(BYTE, CHUNK)
            )
            parts.extend(
                (start + plane.start, _together(builder, numbers, plane))
                for plane in vector_code.planes(width)
            )
            start += width * CHUNK // 8
        is_row = builder.icmp_signed("!=", by_token, index(0))
        with builder.if_else(is_row) as (in_a_row, in_a_column):
            with in_a_row:
                for first, found in parts:
                    place = builder.add(
                        builder.mul(block_size, index(first)),
                        builder.mul(token, index(found.type.count)),
                    )
                    store_vector(builder, found, builder.gep(target, [place]))
            with in_a_column:
                for first, found in parts:
                    for i in range(found.type.count):
                        place = builder.add(builder.mul(block_size, index(first + i)), token)
                        byte = builder.extract_element(found, ir.Constant(I32, i))
                        builder.store(byte, builder.gep(target, [place]))
        return context.get_dummy_value()

    return types.void(*[types.intp] * 5, code), emit


def _together(builder: Any, numbers: Any, plane: Plane) -> Any:
    """A plane of sixteen codes, int8: its bytes."""
    shifted = builder.lshr(numbers, constant(numbers.type, plane.low))
    bits = builder.and_(shifted, constant(numbers.type, 2**plane.bits - 1))
    if plane.in_turn:
        return _in_turn(builder, bits, plane)
    found, size = None, plane.num_bytes
    for part in range(8 // plane.bits):
        lanes = ir.Constant(ir.VectorType(I32, size), list(range(part * size, (part + 1) * size)))
        each = builder.shuffle_vector(bits, bits, lanes)
        each = builder.shl(each, constant(each.type, part * plane.bits))
        found = each if found is None else builder.or_(found, each)
    return found


def _in_turn(builder: Any, bits: Any, plane: Plane) -> Any:
    """The same, of one that has its numbers in turn."""
    steps = builder.trunc(bits, ir.VectorType(ir.IntType(1), CHUNK))
    whole = ir.IntType(8 * plane.num_bytes)
    path = builder.bitcast(steps, ir.IntType(CHUNK))
    found = path if plane.bits == 1 else builder.zext(path, whole)
    if plane.bits > 1:
        wide = ir.VectorType(_WORD, CHUNK)
        rest = builder.lshr(builder.zext(bits, wide), constant(wide, 1))
        places = ir.Constant(wide, [(plane.bits - 1) * number for number in range(CHUNK)])
        word = combine_lanes(builder, builder.shl(rest, places), builder.or_)
        size = ir.IntType(CHUNK * (plane.bits - 1))
        word = word if size.width == _WORD.width else builder.trunc(word, size)
        moved = builder.shl(builder.zext(word, whole), ir.Constant(whole, CHUNK))
        found = builder.or_(found, moved)
    return builder.bitcast(found, ir.VectorType(BYTE, plane.num_bytes))
