"""What codes of paths stand for, on any CPU: see `vector_code` and `codecs.trellis`.

Of a number two bits tell its subset, and the rest of its code which of the subset's levels:

    odd    path bit i - 1
    high   path bit i ^ path bit i - 2

The rest looks up in the tables of all four subsets, and these bits choose. A table of levels has
those of a subset under two of the eight beginnings of windows; they are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir

from pagoda.kernels.cpu.number import constant
from pagoda.kernels.cpu.register_tables import gathered, look_up, read_table
from pagoda.kernels.cpu.vector import BYTE, I32, UNIT, index, lane_numbers, load_vector
from pagoda.kernels.vector_code import CHUNK, PATH_BYTES, SUBSET_STEPS, path_place

_WORD = ir.IntType(16)
_BITS = 8
"""Of a byte."""


class Subsets:
    """Chunks of one width."""

    def __init__(self, builder: Any, width: int, table: Any) -> None:
        """table: pointer to a head's table, which begins with its levels."""
        self._builder, self._rest = builder, width - 1
        first, count = path_place(width), 2 ** (width - 1)
        self._begins = [steps * count for steps in SUBSET_STEPS]
        self._first = builder.gep(table, [index(first)])
        self._tables: list[Any] = []
        if UNIT.looks_up_bytes:
            self._tables = [read_table(builder, self._first, begin) for begin in self._begins]

    def across(self, row: Callable[[int], Any]) -> list[Any]:
        """Where all numbers of a chunk have their levels, two after one another in a vector;
        see `levels`.

        row: makes the vector of a byte of the chunk, of each vector; it is called once for each.
        """
        builder = self._builder
        path = low, high = row(0), row(1)
        changes = self._changes(low, before=high), self._changes(high, before=low)
        rest = [row(PATH_BYTES + byte) for byte in range(PATH_BYTES * self._rest)]
        found = []
        for first in range(0, CHUNK, 2):
            numbers = (first, first + 1)
            is_odd = self._both([self._at_sign(path, each - 1) for each in numbers])
            is_high = self._both([self._at_sign(changes, each) for each in numbers])
            nothing = constant(is_odd.type, 0)
            places = nothing
            if rest:
                places = self._both([self._rest_of(rest, each) for each in numbers])
            is_odd, is_high = (
                builder.icmp_signed("<", each, nothing) for each in (is_odd, is_high)
            )
            found.append(self._found(places, is_odd, is_high))
        return found

    def levels(self, found: Any) -> Any:
        """Levels, int8, of what `across` has found: they are it where a CPU looks up bytes."""
        if UNIT.looks_up_bytes:
            return found
        return gathered(self._builder, self._first, found)

    def along(self, plane: Any, tokens: int) -> Any:
        """Levels of all numbers of a chunk of some tokens, token by token, [16 · tokens] int8.

        plane: pointer to the first token's bytes, which the others' follow.
        """
        builder, size = self._builder, PATH_BYTES * (1 + self._rest)
        paths = [
            builder.load(
                builder.bitcast(builder.gep(plane, [index(token * size)]), _WORD.as_pointer()),
                align=1,
            )
            for token in range(tokens)
        ]

        def before(path: Any, steps: int) -> Any:
            moved = builder.shl(path, ir.Constant(_WORD, steps))
            return builder.or_(moved, builder.lshr(path, ir.Constant(_WORD, CHUNK - steps)))

        def of_numbers(bits: Sequence[Any]) -> Any:
            words = ir.Constant(ir.VectorType(_WORD, tokens), ir.Undefined)
            for token, each in enumerate(bits):
                words = builder.insert_element(words, each, ir.Constant(I32, token))
            both = builder.bitcast(words, ir.VectorType(BYTE, PATH_BYTES * tokens))
            lanes = [number // _BITS for number in range(CHUNK * tokens)]
            spread = builder.shuffle_vector(both, both, lane_numbers(lanes))
            own = ir.Constant(
                spread.type, [1 << number % _BITS for number in range(CHUNK)] * tokens
            )
            return builder.icmp_signed("==", builder.and_(spread, own), own)

        is_odd = of_numbers([before(path, 1) for path in paths])
        is_high = of_numbers([builder.xor(path, before(path, 2)) for path in paths])
        return self.levels(self._found(self._rest_along(plane, tokens), is_odd, is_high))

    def _found(self, places: Any, is_odd: Any, is_high: Any) -> Any:
        builder = self._builder

        def chosen(subsets: Sequence[Any]) -> Any:
            low, high = (builder.select(is_odd, subsets[i + 1], subsets[i]) for i in (0, 2))
            return builder.select(is_high, high, low)

        if UNIT.looks_up_bytes:
            return chosen([look_up(builder, table, places) for table in self._tables])
        begin = chosen([constant(places.type, begin) for begin in self._begins])
        return builder.add(begin, places)

    def _rest_along(self, plane: Any, tokens: int) -> Any:
        """[16 · tokens] int8: where codes have more bits than the path's, two bytes of them in a
        word, and what is wanted brought to its top."""
        builder, bits = self._builder, self._rest
        if bits == 0:
            return constant(ir.VectorType(BYTE, CHUNK * tokens), 0)
        size = PATH_BYTES * (1 + bits)
        read = load_vector(builder, plane, ir.VectorType(BYTE, size * tokens))
        begins = [bits * number for number in range(CHUNK)]
        lanes = [
            token * size + min(PATH_BYTES + begin // _BITS + byte, size - 1)
            for token in range(tokens)
            for begin in begins
            for byte in (0, 1)
        ]
        pairs = builder.shuffle_vector(read, read, lane_numbers(lanes))
        words = builder.bitcast(pairs, ir.VectorType(_WORD, CHUNK * tokens))
        above = [_WORD.width - bits - begin % _BITS for begin in begins] * tokens
        moved = builder.mul(words, ir.Constant(words.type, [1 << each for each in above]))
        moved = builder.lshr(moved, constant(words.type, _WORD.width - bits))
        return builder.trunc(moved, ir.VectorType(BYTE, CHUNK * tokens))

    def _rest_of(self, rest: Sequence[Any], number: int) -> Any:
        """What codes of a number have beside the path's bits."""
        builder, bits = self._builder, self._rest
        byte, start = divmod(bits * number, _BITS)
        here = min(bits, _BITS - start)
        found = _moved(builder, rest[byte], -start)
        found = builder.and_(found, constant(found.type, 2**here - 1))
        if here == bits:
            return found
        more = _moved(builder, rest[byte + 1], here)
        more = builder.and_(more, constant(more.type, 2**bits - 2**here))
        return builder.or_(found, more)

    def _changes(self, path: Any, before: Any) -> Any:
        """Eight bits of a path, each other than that two steps before it, in the byte `before`."""
        builder = self._builder
        moved = builder.shl(path, constant(path.type, 2))
        moved = builder.or_(moved, builder.lshr(before, constant(path.type, _BITS - 2)))
        return builder.xor(path, moved)

    def _at_sign(self, bits: Sequence[Any], number: int) -> Any:
        """Bytes whose sign is the bit of a number; what is below it may be anything."""
        byte, bit = divmod(number % CHUNK, _BITS)
        return _moved(self._builder, bits[byte], _BITS - 1 - bit)

    def _both(self, vectors: Sequence[Any]) -> Any:
        """Two vectors one after the other."""
        first, second = vectors
        lanes = range(2 * first.type.count)
        return self._builder.shuffle_vector(first, second, lane_numbers(lanes))


def _moved(builder: Any, read: Any, bits: int) -> Any:
    """Bytes shifted to the left, or to the right where that is below 0.

    Two at a time: a CPU has no instruction for one. What comes over from the next may be anything.
    """
    if bits == 0:
        return read
    count = read.type.count
    kind = ir.VectorType(_WORD, count // 2) if count % 2 == 0 else read.type
    shift = builder.shl if bits > 0 else builder.lshr
    return builder.bitcast(shift(builder.bitcast(read, kind), constant(kind, abs(bits))), read.type)
