"""The words in which a stored panel keeps codes, and how parts of codes are taken out of them.

A word holds parts of the codes of one lane, low ones or high ones: of a span, as many as fit into
32 bits. Consecutive steps lie in different bytes, so that masking a word leaves the parts of four
consecutive steps, a byte each, as instructions for bytes want them. Single bits of a span of
sixteen steps take 16 bits.

    32 bits     step t at bit 8 · (t mod 4) + bits · (t div 4)
    16 bits     step t at bit (0, 8, 4, 12)[t mod 4] + bits · (t div 4)

A word of 16 bits beside itself, twelve bits further up, is like one of 32: its bytes begin with
steps 0 to 3.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from llvmlite import ir

from pagoda.kernels.block_types import PANEL
from pagoda.kernels.cpu.number import constant
from pagoda.kernels.cpu.stored_types import StoredType
from pagoda.kernels.cpu.vector import (
    BYTE,
    I32,
    LANES,
    LINE_BYTES,
    UNIT,
    index,
    load_vector,
    prefetch,
)

SPAN = 32
"""Numbers of a row that are decoded in one go."""
TOGETHER = 2 if UNIT.pairs else 1
"""Numbers of a row side by side in a decoded panel: a group of four bytes."""
BAND = LANES // TOGETHER
"""Rows of a panel whose codes lie in one vector."""
STEPS = SPAN // TOGETHER
"""Of a span."""
BYTES = 4
"""Steps whose parts lie in the bytes of one word, masked."""
_EVERY_BYTE = 0x01010101
_AHEAD_BYTES = 8192 if TOGETHER == 2 else 4096
"""From what is read to what memory is asked for meanwhile: so many bytes at least."""


def word_bits(bits: int) -> int:
    """Bits of a word that holds parts of so many bits."""
    return min(I32.width, STEPS * bits)


def word_steps(bits: int) -> int:
    """Steps whose parts, of so many bits, a word holds."""
    return word_bits(bits) // bits


def first_bit(place: int, bits: int) -> int:
    """Where a part of so many bits begins, of a step by its place in a word."""
    byte = place % BYTES
    first = 8 * byte if word_bits(bits) == I32.width else (0, 8, 4, 12)[byte]
    return first + bits * (place // BYTES)


def code_offset(stored: StoredType) -> int:
    """What is taken from codes as they are packed: they are two's complement then.

    Those that lie in two parts are not, which would take more to put together.
    """
    return 0 if stored.high_bits else stored.offset


def span_bytes(stored: StoredType) -> int:
    """Bytes of a band's span."""
    return LANES * STEPS * stored.bits // 8


def codes_of_span(builder: Any, stored: StoredType, block: Any, row: Any, span: Any) -> Any:
    """Where the codes of a span lie, of a band; block: pointer to its first byte; row: of these."""
    bands = builder.mul(span, index(PANEL // BAND))
    number = builder.add(bands, builder.udiv(row, index(BAND)))
    head = index(PANEL * len(stored.head))
    return builder.gep(block, [builder.add(head, builder.mul(number, index(span_bytes(stored))))])


def ask_codes(builder: Any, stored: StoredType, block: Any, row: Any, span: Any) -> None:
    """Ask memory for the codes of a span, of `LANES` rows from `row` on.

    A CPU reads ahead by itself, but not as far as is wanted, often not into the next page,
    and never into the panel that a thread takes next.
    """
    codes = codes_of_span(builder, stored, block, row, span)
    _ask(builder, codes, TOGETHER * span_bytes(stored))


def ask_head(builder: Any, stored: StoredType, block: Any) -> None:
    """Ask memory for what is before the codes of a block."""
    _ask(builder, block, PANEL * len(stored.head))


def _ask(builder: Any, start: Any, num_bytes: int) -> None:
    for line in range(0, num_bytes, LINE_BYTES):
        prefetch(builder, builder.gep(start, [index(line)]))


def blocks_ahead(stored: StoredType) -> int:
    """From the block that is read to the one that memory is asked for meanwhile."""
    return -(-_AHEAD_BYTES // (PANEL * stored.block_bytes))


class Blocks:
    """The blocks of a panel in order, and for each the one that memory is asked for meanwhile."""

    def __init__(
        self, builder: Any, stored: StoredType, panel: Any, spans: Any, following: Any
    ) -> None:
        """panel: its address, of so many spans; following: that of the panel that is read next,
        whose first blocks are asked for at the end of this one."""
        self._builder = builder
        self._panel = builder.inttoptr(panel, BYTE.as_pointer())
        self._following = builder.inttoptr(following, BYTE.as_pointer())
        self._block_bytes = PANEL * stored.block_bytes
        self._later = blocks_ahead(stored)
        self.count = builder.udiv(spans, index(stored.block_values // SPAN))

    def at(self, number: Any) -> tuple[Any, Any]:
        """Pointers to a block, and to the one that is asked for while it is read."""
        builder = self._builder
        later = builder.add(number, index(self._later))
        left = builder.sub(later, self.count)
        asked = builder.select(
            builder.icmp_signed("<", left, index(0)),
            self._from(self._panel, later),
            self._from(self._following, left),
        )
        return self._from(self._panel, number), asked

    def _from(self, panel: Any, number: Any) -> Any:
        place = self._builder.mul(number, index(self._block_bytes))
        return self._builder.gep(panel, [place])


class Words:
    """The words of a band's span, in some lanes."""

    def __init__(
        self, builder: Any, stored: StoredType, start: Any, first: Any = None, lanes: int = LANES
    ) -> None:
        """start: pointer to the first byte; first: the first of so many lanes, None: 0."""
        self._builder, self._stored = builder, stored
        self._kind = ir.VectorType(I32, lanes)
        self._first = index(0) if first is None else first
        self._low = self._load(start, stored.low_bits)
        low_bytes = LANES * STEPS * stored.low_bits // 8
        self._high = self._load(builder.gep(start, [index(low_bytes)]), stored.high_bits)

    def _load(self, start: Any, bits: int) -> Callable[[int], Any]:
        """What loads a word by its number when it is first wanted: those of a span together
        would have to wait in memory."""
        builder = self._builder

        @cache
        def load(number: int) -> Any:
            kind = ir.VectorType(ir.IntType(word_bits(bits)), self._kind.count)
            size = word_bits(bits) // 8
            lane = builder.add(self._first, index(number * LANES))
            place = builder.gep(start, [builder.mul(lane, index(size))])
            value = load_vector(builder, place, kind)
            return value if kind == self._kind else builder.zext(value, self._kind)

        return load

    def shifted(self, step: int) -> Any:
        """The low parts of the codes of a step in the lowest bits of lanes; others are above."""
        number, by = self._place(step, self._stored.low_bits)
        word = self._low(number)
        return self._builder.lshr(word, constant(self._kind, by)) if by else word

    def code(self, step: int) -> Any:
        """The codes of a step as stored, a whole number in each lane; signed if they are."""
        stored, builder = self._stored, self._builder
        code = self._low_part(step)
        if stored.high_bits:
            code = builder.or_(code, self._high_part(step))
            if stored.offset:
                code = builder.sub(code, constant(self._kind, stored.offset))
        return code

    def _low_part(self, step: int) -> Any:
        stored, builder, bits = self._stored, self._builder, self._stored.low_bits
        number, first = self._place(step, bits)
        word = self._low(number)
        if stored.is_signed or code_offset(stored):
            above = I32.width - bits - first
            moved = builder.shl(word, constant(self._kind, above)) if above else word
            return builder.ashr(moved, constant(self._kind, I32.width - bits))
        return self._part(word, first, bits, 0)

    def _high_part(self, step: int) -> Any:
        """Where the code has it."""
        bits = self._stored.high_bits
        number, first = self._place(step, bits)
        return self._part(self._high(number), first, bits, self._stored.low_bits)

    def _place(self, step: int, bits: int) -> tuple[int, int]:
        """The word of a step, and where its part begins there."""
        number, place = divmod(step, word_steps(bits))
        return number, first_bit(place, bits)

    def code_bytes(self, number: int) -> Any:
        """The codes of `BYTES` steps from step `BYTES * number` on, a byte each in every lane.

        Those of fewer than eight bits are raised by the type's offset, and so not below zero.
        """
        stored, builder = self._stored, self._builder
        found = self._byte_parts(self._unsigned, number, stored.low_bits, 0)
        if stored.high_bits:
            high = self._byte_parts(self._high, number, stored.high_bits, stored.low_bits)
            found = builder.or_(found, high)
        return found

    def _byte_parts(
        self, word_of: Callable[[int], Any], number: int, bits: int, target: int
    ) -> Any:
        """Parts of so many bits of those steps, moved to bit `target` of their bytes.

        word_of: gives a word by its number.
        """
        which, place = divmod(number, word_steps(bits) // BYTES)
        word = word_of(which)
        if word_bits(bits) < I32.width:
            word = self._builder.or_(word, self._builder.shl(word, constant(self._kind, 12)))
        return self._part(word, bits * place, bits, target, _EVERY_BYTE)

    def _unsigned(self, number: int) -> Any:
        """A low word whose codes are raised to be none below zero."""
        stored, word = self._stored, self._low(number)
        if not code_offset(stored):
            return word
        every = sum(1 << bit for bit in range(stored.low_bits - 1, 32, stored.low_bits))
        return self._builder.xor(word, constant(self._kind, every))

    def _part(self, word: Any, first: int, bits: int, target: int, times: int = 1) -> Any:
        """`bits` of a word from `first` on, moved to bit `target`; `times`: of each byte."""
        builder, by = self._builder, first - target
        if by > 0:
            word = builder.lshr(word, constant(self._kind, by))
        elif by < 0:
            word = builder.shl(word, constant(self._kind, -by))
        mask = (((1 << bits) - 1) << target) * times
        return word if mask == 0xFFFFFFFF else builder.and_(word, constant(self._kind, mask))
