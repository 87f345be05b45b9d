"""Random codes of keys, or values, in blocks."""

from __future__ import annotations

import ctypes

import numpy as np

from pagoda.kernels.array import Array
from pagoda.kernels.cpu.level_tables import head_tables
from pagoda.kernels.reference import bfloat16_bits, bfloat16_values
from pagoda.kernels.vector_code import CHUNK, TABLE_SIZE, WINDOWS, VectorCode, unpack

HEADS, ROWS, NUM_BLOCKS = 2, 5, 6
CODES = {
    "mixed": VectorCode("levels", (6, 5, 4, 3, 2, 1, 0, 5), "float16"),
    "paths": VectorCode("levels", (4, 3, 6, 2, 1, 0, 5), "float16", has_paths=True),
    "fours": VectorCode("levels", (4, 4, 4, 4), "float16", has_offset=True),
    "bytes": VectorCode("int8", (8, 8, 8), "float32"),
    "floats": VectorCode("e4m3", (8,)),
    "gap": VectorCode("levels", (0, 3)),
}


def call(address: int, *args: int) -> None:
    ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * len(args))(address)(*args)


class Case:
    """Random codes of one side in blocks of a table, and rows that meet them."""

    def __init__(self, name: str, paired: bool, block_size: int) -> None:
        self.code, self.paired, self.block_size = CODES[name], paired, block_size
        self.rng = np.random.default_rng(block_size)
        self.table = self.rng.permutation(NUM_BLOCKS).astype(np.int32)
        shape = (NUM_BLOCKS, HEADS, block_size, self.code.code_bytes)
        self.bytes = self.rng.integers(0, 256, shape).astype(np.uint8)
        if name == "floats":
            self.bytes[(self.bytes & 0x7F) == 0x7F] = 0
        if name == "bytes":
            self.bytes[self.bytes == 0x80] = 0
        self.tables = self.rng.integers(-127, 128, (HEADS, TABLE_SIZE)).astype(np.int8)
        for width in filter(self.code.is_path, set(self.code.widths)):
            first = self.code.table_place(width)
            windows = self.tables[:, first : 2 * first - WINDOWS].reshape(HEADS, 8, -1)
            windows[:, 4:] = windows[:, [1, 0, 3, 2]]  # of the same subsets
        self.head_tables = head_tables(self.tables)
        self.shape = (paired, self.code.head_size, block_size)

    def levels(self) -> Array:
        """[tokens, heads, head_size], in the order of the table."""
        codes = unpack(self.code, self.bytes)[self.table].transpose(0, 2, 1, 3)
        codes = codes.reshape(-1, HEADS, self.code.head_size)
        if self.code.numbers == "int8":
            return codes.view(np.int8).astype(np.float64)
        if self.code.numbers == "e4m3":
            fraction, exponent = codes % 8, (codes & 0x7F) >> 3
            normal = (1 + fraction / 8) * 2.0 ** (exponent.astype(int) - 7)
            sizes = np.where(exponent > 0, normal, fraction / 8 * 2.0**-6)
            return np.where(codes < 128, sizes, -sizes)
        found = np.zeros(codes.shape)
        for chunk, width in enumerate(self.code.widths):
            part = slice(chunk * CHUNK, (chunk + 1) * CHUNK)
            for head in range(HEADS):
                own = codes[:, head, part].astype(int)
                if self.code.is_path(width):
                    steps = [np.roll(own & 1, shift, -1) << 2 - shift for shift in range(3)]
                    own = sum(steps) << (width - 1) | own >> 1
                first = self.code.table_place(width)
                found[:, head, part] = self.tables[head, first + own] if width else 0
        return found

    def stored(self, rows: Array) -> tuple[Array, Array]:
        """Rows as products take them, and what they stand for."""
        if not self.paired:
            return rows.astype(np.float32), rows.astype(np.float32)
        bits = bfloat16_bits(rows)
        return bits, bfloat16_values(bits)
