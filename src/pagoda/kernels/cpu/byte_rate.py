"""How fast a CPU multiplies bytes and adds them up when nothing is read.

With vectors as wide as `int8_product` takes them: a limit of its products.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import prange, types
from numba.core import cgutils

from pagoda.kernels.array import Array
from pagoda.kernels.cpu.byte_products import BYTE, HALF, add_fours
from pagoda.kernels.cpu.kernel import kernel
from pagoda.kernels.cpu.number import constant, emitted
from pagoda.kernels.cpu.stored_words import TOGETHER
from pagoda.kernels.cpu.vector import I32, UNIT, instruction, keep_loop

_CHAINS = 8
"""Sums that grow side by side, since each waits for its last product."""
_LANES = 8 * TOGETHER
ROUND_OPERATIONS = 2 * _CHAINS * _LANES * (4 if UNIT.byte_products else 1)
"""A multiplication and an addition are two."""


@kernel
def multiply_bytes(rounds: int, sums: Array) -> None:
    """Do `ROUND_OPERATIONS` so many times in each thread; sums: [threads] int32, written."""
    for thread in prange(sums.shape[0]):
        sums[thread] = _grow(rounds)


@emitted
def _grow(typing: Any, rounds: Any) -> Any:
    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.VectorType(I32, _LANES)
        cells = [cgutils.alloca_once_value(builder, constant(kind, n)) for n in range(_CHAINS)]
        with cgutils.for_range(builder, args[0]):
            keep_loop(builder)
            for cell in cells:
                builder.store(_grown(builder, builder.load(cell)), cell)
        total = builder.load(cells[0])
        for cell in cells[1:]:
            total = builder.xor(total, builder.load(cell))
        return builder.extract_element(total, ir.Constant(I32, 0))

    return types.int32(types.intp), emit


def _grown(builder: Any, total: Any) -> Any:
    """The sum and products of its own bytes; or, without such, the product with itself."""
    ones = constant(total.type, 0x01010101)
    if UNIT.byte_products == 4:
        return add_fours(builder, total, total, ones)
    if UNIT.byte_products == 2:
        factors, halves = ir.VectorType(BYTE, 4 * _LANES), ir.VectorType(HALF, 2 * _LANES)
        bytes_of = [builder.bitcast(each, factors) for each in (total, ones)]
        pairs = instruction(builder, "llvm.x86.avx2.pmadd.ub.sw", bytes_of, halves)
        grown = builder.add(builder.bitcast(total, halves), pairs)
        return builder.bitcast(grown, total.type)
    return builder.add(total, builder.mul(total, total))
