"""Products that sum in one order, whatever the number of rows, beside PyTorch's, which need not.

What batch invariance costs: the same products, with so many weights that no cache holds them all,
by this project's kernel and by `torch.mm`, in turn. The one writes float32, the other what it
reads. Prints a table, the machine's limits (memory read from end to end, and float32 multiplied and
added in registers alone), then one JSON line. With `--type` its own weights keep one of GGUF's
types, and its GB/s are of the bytes that are stored; with `--activation-dtype int8` rows are
rounded to eight bits beforehand.

    python benchmarks/products.py [--rows 1 4 16 64 512] [--dtype float32]
    python benchmarks/products.py --type Q4_K [--activation-dtype int8]
"""

from __future__ import annotations

import argparse
import json
from typing import Any

import numba
import numpy as np
import torch
from numba import njit, prange, types
from numba.core import cgutils

from pagoda.engine.devices.machine import best_seconds, read_bandwidth
from pagoda.execution.cpu.panel_matrix import PanelMatrix
from pagoda.kernels.array import Array
from pagoda.kernels.block_types import BLOCK_TYPES, BYTE_TYPES
from pagoda.kernels.cpu.int8_rows import RECORD_BYTES, round_routine, round_some
from pagoda.kernels.cpu.multiply import (
    MEMORY_BYTES,
    ProductRoutines,
    entry_of_run,
    multiply,
    product_routines,
)
from pagoda.kernels.cpu.number import constant, emitted, fused
from pagoda.kernels.cpu.stored_types import STORED_TYPES
from pagoda.kernels.cpu.stored_words import SPAN
from pagoda.kernels.cpu.sums import sum_routine
from pagoda.kernels.cpu.team import PHASE_BYTES, first_phase, phases, team_of
from pagoda.kernels.cpu.vector import (
    LANES,
    UNIT,
    combine_lanes,
    floats,
    keep_loop,
    spread,
)
from pagoda.models.stored_rows import StoredRows
from pagoda.models.weight_memory import HostMemory
from pagoda.sizing.kept_weights import matrix_bytes

_ROUNDS = 10
_REPEATS = 100_000


@emitted
def _grow_sums(typing: Any, count: Any, factor: Any) -> Any:
    """Multiply and add `count` times in each register of sums; their sum."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        x = spread(builder, args[1], LANES)
        start = constant(floats(), 1.0)
        cells = [cgutils.alloca_once_value(builder, start) for _ in range(UNIT.accumulators)]
        with cgutils.for_range(builder, args[0]):
            keep_loop(builder)
            for cell in cells:
                builder.store(fused(builder, builder.load(cell), x, x), cell)
        total = start
        for cell in cells:
            total = builder.fadd(total, builder.load(cell))
        return combine_lanes(builder, total, builder.fadd)

    return types.float32(types.intp, types.float32), emit


@njit(parallel=True)
def _grow_all(num_threads: int, factor: np.float32, sums: Array) -> None:
    for thread in prange(num_threads):
        sums[thread] = _grow_sums(_REPEATS, factor)


def multiply_add_rate(num_threads: int) -> float:
    """Operations a second when nothing is read: no product of float32 is faster."""
    sums = np.empty(num_threads, np.float32)
    seconds = best_seconds(lambda: _grow_all(num_threads, np.float32(0.5), sums), 20)
    return num_threads * _REPEATS * UNIT.accumulators * LANES * 2 / seconds


@njit(parallel=True)
def _multiply_all(
    places: int, memory: int, num_threads: int, routines: ProductRoutines, use: int, out: int,
    x: int, rows: int, depth: int, records: int, weights: Array, width: int, no_bias: int,
) -> None:  # fmt: skip
    for thread in prange(num_threads):
        team = team_of(thread, num_threads, places)
        for number in range(len(weights)):
            upcoming = entry_of_run(team, weights[min(number + 1, len(weights) - 1)], rows)
            multiply(
                first_phase(places, num_threads) + number * PHASE_BYTES, team, routines, use,
                memory + thread * MEMORY_BYTES, out, width * 4, 4, x, rows, depth, records,
                weights[number], 0, width, no_bias, 0, upcoming,
            )  # fmt: skip


@njit
def _round_all(routine: int, records: int, x: int, rows: int, width: int) -> None:
    round_some(routine, records, x, 0, rows, rows, width)


class Products:
    """x · each of some weights [width, depth] of a dtype, by either."""

    def __init__(
        self, dtype: torch.dtype, num_weights: int, width: int, depth: int, kind: str | None,
        *, rounds: bool,
    ) -> None:  # fmt: skip
        """rounds: this project's products round rows to eight bits."""
        self._dtype, self._rounds = dtype, rounds
        self._plain = [torch.randn(width, depth).to(dtype) for _ in range(num_weights)]
        self._own = [_own(weight, kind) for weight in self._plain]
        self._places = np.array([weight.address for weight in self._own])
        self._bias = np.zeros(width, np.float32)
        self._num_threads = numba.get_num_threads()
        self._memory = np.empty(self._num_threads * MEMORY_BYTES, np.uint8)
        self.num_bytes = sum(weight.nbytes for weight in self._own)
        self.num_plain_bytes = num_weights * width * depth * dtype.itemsize
        self.num_operations = num_weights * width * depth * 2
        """For each row."""
        self._shape = width, depth

    def seconds(self, num_rows: int) -> tuple[float, float]:
        """Seconds of this project's kernel and of PyTorch's: the best of rounds in turn."""
        width, depth = self._shape
        x = torch.randn(num_rows, depth).to(self._dtype)
        own, other = torch.empty(num_rows, width), torch.empty(num_rows, width).to(self._dtype)
        use = sum_routine(adds=False)
        routines = product_routines(self._dtype == torch.bfloat16)
        groups = depth * self._dtype.itemsize // 4
        records = np.zeros((depth // SPAN, num_rows, RECORD_BYTES), np.uint8)
        if self._rounds:
            _round_all(round_routine().address, records.ctypes.data, x.data_ptr(), num_rows, depth)

        def multiply_own() -> None:
            counters = phases(len(self._places), self._num_threads)
            _multiply_all(
                counters.ctypes.data, self._memory.ctypes.data, self._num_threads, routines,
                use.address, own.data_ptr(), x.data_ptr(), num_rows, groups,
                records.ctypes.data if self._rounds else 0, self._places, width,
                self._bias.ctypes.data,
            )  # fmt: skip

        def multiply_other() -> None:
            for weight in self._plain:
                torch.mm(x, weight.t(), out=other)

        pairs = [
            (best_seconds(multiply_own, 2), best_seconds(multiply_other, 2)) for _ in range(_ROUNDS)
        ]
        own_s, other_s = (min(times) for times in zip(*pairs, strict=True))
        return own_s, other_s


def _own(weight: torch.Tensor, kind: str | None) -> PanelMatrix:
    """A copy of the weight in panels, or random blocks of a type with float16 scales."""
    if kind is None:
        return PanelMatrix.plain(weight.clone())
    block, rng = BLOCK_TYPES[kind], np.random.default_rng(0)
    count = weight.numel() // block.num_values
    blocks = rng.integers(0, 256, (count, block.num_bytes), np.uint8)
    for half in STORED_TYPES[kind].halves:
        blocks[:, half : half + 2] = np.frombuffer(np.float16(1e-3).tobytes(), np.uint8)
    rows = blocks.reshape(len(weight), -1)
    stored = StoredRows(
        name="a weight",
        type=kind,
        shape=(weight.shape[0], weight.shape[1]),
        nbytes=blocks.nbytes,
        blocks=lambda first, num_rows: rows[first : first + num_rows],
        read=lambda target: None,
        release=lambda: None,
    )
    memory = HostMemory(matrix_bytes([stored], weight.dtype.itemsize), 1)
    return PanelMatrix.stored([stored], weight.dtype, memory)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    types = [name for name, stored in STORED_TYPES.items() if stored.halves]
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 4, 16, 64, 512])
    parser.add_argument("--weights", type=int, default=60)
    parser.add_argument("--width", type=int, default=3072)
    parser.add_argument("--depth", type=int, default=576)
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--type", choices=types, help="of this project's weights")
    parser.add_argument("--activation-dtype", choices=("auto", "int8"), default="auto")
    args = parser.parse_args()
    if args.activation_dtype == "int8" and args.type not in BYTE_TYPES:
        parser.error("rows are rounded for stored types with whole codes: say one with --type")
    if args.type and args.dtype != "bfloat16":
        parser.error("stored types are multiplied in bfloat16")
    dtype = getattr(torch, args.dtype)
    products = Products(
        dtype, args.weights, args.width, args.depth, args.type,
        rounds=args.activation_dtype == "int8",
    )  # fmt: skip
    rate, bandwidth = _limits()
    results = []
    print("| rows | GB/s | PyTorch | TFLOP/s | PyTorch | times as fast |")
    print("|---|---|---|---|---|---|")
    for rows in args.rows:
        own, other = products.seconds(rows)
        rate, bandwidth = map(max, (rate, bandwidth), _limits())
        rates = [products.num_bytes / own / 1e9, products.num_plain_bytes / other / 1e9]
        operations = [products.num_operations * rows / seconds / 1e12 for seconds in (own, other)]
        print(
            f"| {rows} | {rates[0]:.1f} | {rates[1]:.1f} | {operations[0]:.3f} |"
            f" {operations[1]:.3f} | {other / own:.2f} |",
            flush=True,
        )
        results.append({"rows": rows, "seconds": own, "torch_seconds": other})
    print(f"limits: memory {bandwidth / 1e9:.1f} GB/s, float32 {rate / 1e12:.3f} TFLOP/s")
    print(json.dumps({"results": results, "bandwidth": bandwidth, "float32_rate": rate}))


def _limits() -> tuple[float, float]:
    return multiply_add_rate(numba.get_num_threads()), read_bandwidth()


if __name__ == "__main__":
    main()
