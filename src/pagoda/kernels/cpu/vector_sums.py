"""What all numbers of a vector make together: its range, and sums of products."""

from __future__ import annotations

from typing import Any

from numba import types

from pagoda.kernels.cpu.number import constant, emitted, fused
from pagoda.kernels.cpu.vector import combine_lanes, floats
from pagoda.kernels.cpu.vector_chunks import chunk_of
from pagoda.kernels.vector_code import VectorCode


@emitted
def range_of(typing: Any, x: Any, code: Any) -> Any:
    """The lowest and the highest number of a vector: x, [head_size] float32.

    code: of a `VectorCode`, a constant.
    """
    count = len(VectorCode.of_text(code.literal_value).widths)

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        found = []
        for comparison in ("<", ">"):

            def nearer(left: Any, right: Any, comparison: str = comparison) -> Any:
                return builder.select(builder.fcmp_ordered(comparison, right, left), right, left)

            so_far = chunk_of(builder, args[0], 0)
            for chunk in range(1, count):
                so_far = nearer(so_far, chunk_of(builder, args[0], chunk))
            found.append(combine_lanes(builder, so_far, nearer))
        return context.make_tuple(builder, signature.return_type, found)

    return types.UniTuple(types.float32, 2)(types.intp, code), emit


@emitted
def product_sum(typing: Any, x: Any, y: Any, code: Any) -> Any:
    """Σ x · y of two vectors: [head_size] float32.

    code: of a `VectorCode`, a constant.
    """
    count = len(VectorCode.of_text(code.literal_value).widths)

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        total = constant(floats(), 0.0)
        for chunk in range(count):
            left, right = (chunk_of(builder, each, chunk) for each in args[:2])
            total = fused(builder, left, right, total)
        return combine_lanes(builder, total, builder.fadd)

    return types.float32(types.intp, types.intp, code), emit
