"""Windows of a path, which say what numbers stand for, on any CPU: see `vector_code`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir

from pagoda.kernels.cpu.number import constant
from pagoda.kernels.cpu.vector import BYTE, I32, index, spread
from pagoda.kernels.vector_code import CHUNK, MEMORY, PATH_BYTES

_WORD = ir.IntType(64)
_STEPS = 2 ** (MEMORY + 1) - 1


def windows_across(builder: Any, width: int, number: Any, row: Callable[[Any], Any]) -> Any:
    """Windows of one number of a chunk, int8, of as many vectors as a row has lanes.

    row: given the place of a byte in a chunk, makes a vector of that byte of each vector.
    """
    low, high = (row(index(byte)) for byte in (0, 1))
    kind = ir.VectorType(I32, low.type.count)

    def wide(lower: Any, upper: Any) -> Any:
        upper = builder.shl(builder.zext(upper, kind), constant(kind, 8))
        return builder.or_(builder.zext(lower, kind), upper)

    def moved(word: Any, places: Any) -> Any:
        return builder.lshr(word, spread(builder, builder.trunc(places, I32), kind.count))

    ring = _ring(builder, wide(low, high))
    start = builder.add(number, index(CHUNK - MEMORY))
    windows = builder.and_(moved(ring, start), constant(kind, _STEPS))
    if width == 1:
        return builder.trunc(windows, low.type)
    bits = width - 1
    place = builder.mul(number, index(bits))
    byte = builder.lshr(place, index(3))
    is_last = builder.icmp_signed("==", byte, index(PATH_BYTES * bits - 1))
    after = builder.select(is_last, byte, builder.add(byte, index(1)))
    word = wide(*(row(builder.add(each, index(PATH_BYTES))) for each in (byte, after)))
    return _joined(builder, windows, moved(word, builder.and_(place, index(7))), bits)


def windows_along(builder: Any, width: int, planes: Sequence[Any]) -> Any:
    """Windows of all numbers of a chunk, [16] int8, from a pointer to the bytes of its plane."""
    (plane,) = planes
    read = builder.load(builder.bitcast(plane, ir.IntType(16).as_pointer()), align=1)
    kind = ir.VectorType(I32, CHUNK)
    ring = _ring(builder, spread(builder, builder.zext(read, I32), CHUNK))
    starts = ir.Constant(kind, [number + CHUNK - MEMORY for number in range(CHUNK)])
    windows = builder.and_(builder.lshr(ring, starts), constant(kind, _STEPS))
    if width == 1:
        return builder.trunc(windows, ir.VectorType(BYTE, CHUNK))
    bits, rest = width - 1, builder.gep(plane, [index(PATH_BYTES)])
    read = builder.load(builder.bitcast(rest, ir.IntType(CHUNK * bits).as_pointer()), align=1)
    word = read if read.type.width == _WORD.width else builder.zext(read, _WORD)
    words = spread(builder, word, CHUNK)
    places = ir.Constant(words.type, [bits * number for number in range(CHUNK)])
    rest = builder.trunc(builder.lshr(words, places), kind)
    return _joined(builder, windows, rest, bits)


def _ring(builder: Any, path: Any) -> Any:
    """Sixteen steps, int32, and once more behind them."""
    return builder.or_(path, builder.shl(path, constant(path.type, CHUNK)))


def _joined(builder: Any, steps: Any, rest: Any, bits: int) -> Any:
    """Windows, int8, of steps and the `bits` lowest bits of the rest."""
    rest = builder.and_(rest, constant(rest.type, 2**bits - 1))
    whole = builder.or_(builder.shl(steps, constant(steps.type, bits)), rest)
    return builder.trunc(whole, ir.VectorType(BYTE, whole.type.count))
