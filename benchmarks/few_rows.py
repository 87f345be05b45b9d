"""What few rows take of a panel that keeps its type, in cache: decoding and multiplying alone.

One core, one panel again and again, so that memory plays no part. For each type and number of rows
the time of 32 numbers of each of sixteen columns, which one product of pairs takes in, the best of
many; and in cycles, where `--ghz` says how many a nanosecond has.

    python benchmarks/few_rows.py [--types Q4_K Q6_K] [--rows 1 2 4 8] [--ghz 3.67]
"""

from __future__ import annotations

import argparse
import time

import numpy as np
from numba import njit

from pagoda.kernels.array import Array
from pagoda.kernels.block_types import PANEL
from pagoda.kernels.cpu.few_rows import FEW_ROWS, few_rows_routine
from pagoda.kernels.cpu.pack_stored import pack_stored
from pagoda.kernels.cpu.routine import call
from pagoda.kernels.cpu.stored_types import STORED_TYPES, StoredType
from pagoda.kernels.cpu.stored_words import SPAN
from pagoda.kernels.cpu.sums import SUMS_BYTES
from pagoda.kernels.cpu.vector import LANES

_DEPTH = 1024
"""Numbers of a row: the panel and what is decoded of it stay in the second level at most."""
_TIMES, _ROUNDS = 200, 40


@njit
def _repeat(routine: int, times: int, args: tuple[int, ...]) -> None:
    for _ in range(times):
        call(routine, args)


def measure(name: str, num_rows: int) -> float:
    """Nanoseconds of 32 numbers of sixteen columns."""
    stored = STORED_TYPES[name]
    panel = _panel(stored)
    rows = np.random.default_rng(1).standard_normal((FEW_ROWS, _DEPTH)).astype(np.float32)
    x = (rows.view(np.uint32) >> 16).astype(np.uint16)
    out = np.zeros((FEW_ROWS, SUMS_BYTES // 4), np.float32)
    address = panel.ctypes.data
    args = (
        *(out.ctypes.data, x.ctypes.data, _DEPTH // 2, num_rows),
        *(address, _DEPTH // SPAN, address),
    )
    routine = few_rows_routine(name).address
    best = float("inf")
    for _ in range(_ROUNDS):
        began = time.perf_counter()
        _repeat(routine, _TIMES, args)
        best = min(best, time.perf_counter() - began)
    return best * 1e9 / _TIMES / (PANEL // LANES * _DEPTH // 2)


def _panel(stored: StoredType) -> Array:
    """Random blocks, whose scales are small."""
    num_blocks = _DEPTH // stored.block_values
    shape = (PANEL, num_blocks, stored.block_bytes)
    blocks = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    for half in stored.halves:
        blocks[..., half + 1] = 0x20 + (blocks[..., half + 1] & 7)
    panel = np.zeros((1, PANEL * num_blocks * stored.block_bytes), np.uint8)
    assert pack_stored(stored.name, blocks.reshape(PANEL, -1), panel)
    return panel


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    gguf = ("Q4_0", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS")
    parser.add_argument("--types", nargs="+", default=gguf, choices=sorted(STORED_TYPES))
    rows = [number for number in (1, 2, 4, 8) if number <= FEW_ROWS]
    one_of = range(1, FEW_ROWS + 1)
    parser.add_argument("--rows", nargs="+", type=int, default=rows, choices=one_of)
    parser.add_argument("--ghz", type=float)
    options = parser.parse_args()
    unit = "ns" if options.ghz is None else "cycles"
    print(f"{unit} of 32 numbers of sixteen columns, by rows")
    print("| type |", " | ".join(map(str, options.rows)), "|")
    print("| --- |", " | ".join("---" for _ in options.rows), "|")
    for name in options.types:
        found = (measure(name, num_rows) * (options.ghz or 1) for num_rows in options.rows)
        print(f"| {name} |", " | ".join(f"{each:.1f}" for each in found), "|", flush=True)


if __name__ == "__main__":
    main()
