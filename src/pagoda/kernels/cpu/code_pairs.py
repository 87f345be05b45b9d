"""Codes as pairs of bfloat16, sixty-four at a time, for CPUs with long tables: bytes that look up
what they stand for (`pair_tables`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir

from pagoda.kernels.cpu.chunk_keys import chunk_keys
from pagoda.kernels.cpu.long_vectors import ROWS
from pagoda.kernels.cpu.number import constant
from pagoda.kernels.cpu.page_readers import Add, Source
from pagoda.kernels.cpu.pair_tables import PairTable, pair_table
from pagoda.kernels.cpu.path_pairs import path_values
from pagoda.kernels.cpu.plane_codes import plane_values
from pagoda.kernels.cpu.vector import I32, index
from pagoda.kernels.vector_code import CHUNK, VectorCode


class PairDecoder:
    """See `KeyDecoder` and `ValueDecoder`."""

    at_once = 2
    groups = CHUNK // 2

    def __init__(self, code: VectorCode) -> None:
        self._code = code
        self._table: PairTable | None = None

    def open(self, builder: Any, table: Any) -> None:
        """See `KeyDecoder`."""
        self._table = pair_table(builder, self._code, table)

    def keys(
        self, builder: Any, width: int, sources: Sequence[Source], stride: int, group: Any, add: Add
    ) -> None:
        """See `KeyDecoder`: in ascending order."""
        table = self._table
        assert table is not None
        keys = [
            chunk_keys(builder, self._code, width, source.first, stride, table.order)
            for source in sources
        ]
        for number in range(0, CHUNK, ROWS):
            pairs = [table.pairs(each.codes(number), width) for each in keys]
            for half, groups in enumerate(zip(*pairs, strict=True)):
                add(builder.add(group, index(number // 2 + half)), groups)

    def zeros(self, lanes: int) -> Any:
        """See `KeyDecoder`."""
        return constant(ir.VectorType(I32, lanes), 0)

    def values(self, builder: Any, width: int, planes: Sequence[Any]) -> list[Any]:
        """See `ValueDecoder`: of four tokens."""
        table = self._table
        assert table is not None
        if self._code.is_path(width):
            return table.pairs(path_values(builder, width, planes), width)
        return table.pairs(plane_values(builder, width, planes, table.order), width)
