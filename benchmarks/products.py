"""Products that sum in one order, whatever the number of rows, beside PyTorch's, which need not.

What batch invariance costs: the same products of bfloat16, with so many weights that no cache holds
them all, by this project's kernel and by `torch.mm`, in turn. The one writes float32, the other
bfloat16. Prints a table, then one JSON line.

    python benchmarks/products.py [--rows 1 4 16 64 512]
"""

from __future__ import annotations

import argparse
import json

import numba
import numpy as np
import torch
from numba import njit, prange

from pagoda.engine.devices.machine import best_seconds
from pagoda.kernels.array import Array
from pagoda.kernels.cpu.panel_product import PanelRoutines, panel_routines
from pagoda.kernels.cpu.panels import SUMS_SIZE, multiply, pack, sum_routine
from pagoda.kernels.cpu.team import PHASE_BYTES, phases
from pagoda.storage.cpu_storage import as_array

_ROUNDS = 10


@njit(parallel=True)
def _multiply_all(
    counters: int, memory: int, num_threads: int, routines: PanelRoutines, use: int, out: int,
    x: int, rows: int, depth: int, weights: Array, width: int, no_bias: int,
) -> None:  # fmt: skip
    for thread in prange(num_threads):
        for number in range(len(weights)):
            upcoming = weights[min(number + 1, len(weights) - 1)]
            multiply(
                counters + number * PHASE_BYTES, num_threads, routines, use,
                memory + thread * SUMS_SIZE, out, width * 4, 4, x, rows, depth, weights[number], 0,
                width, no_bias, 0, upcoming,
            )  # fmt: skip


class Products:
    """x · each of some weights [width, depth] of bfloat16, by either."""

    def __init__(self, num_weights: int, width: int, depth: int) -> None:
        self._plain = [torch.randn(width, depth).bfloat16() for _ in range(num_weights)]
        self._packed = [as_array(weight.clone()) for weight in self._plain]
        for weight in self._packed:
            pack(weight)
        self._places = np.array([weight.ctypes.data for weight in self._packed])
        self._bias = np.zeros(width, np.float32)
        self._num_threads = numba.get_num_threads()
        self._memory = np.empty(self._num_threads * SUMS_SIZE, np.uint8)
        self.num_bytes = num_weights * width * depth * 2
        self.num_operations = num_weights * width * depth * 2
        """For each row."""
        self._shape = width, depth

    def seconds(self, num_rows: int) -> tuple[float, float]:
        """Seconds of this project's kernel and of PyTorch's: the best of rounds in turn."""
        width, depth = self._shape
        x = torch.randn(num_rows, depth).bfloat16()
        own, other = torch.empty(num_rows, width), torch.empty(num_rows, width).bfloat16()
        use, routines = sum_routine(adds=False), panel_routines(True)

        def multiply_own() -> None:
            counters = phases(len(self._places))
            _multiply_all(
                counters.ctypes.data, self._memory.ctypes.data, self._num_threads, routines,
                use.address, own.data_ptr(), x.data_ptr(), num_rows, depth // 2, self._places,
                width, self._bias.ctypes.data,
            )  # fmt: skip

        def multiply_other() -> None:
            for weight in self._plain:
                torch.mm(x, weight.t(), out=other)

        pairs = [
            (best_seconds(multiply_own, 2), best_seconds(multiply_other, 2)) for _ in range(_ROUNDS)
        ]
        own_s, other_s = (min(times) for times in zip(*pairs, strict=True))
        return own_s, other_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 4, 16, 64, 512])
    parser.add_argument("--weights", type=int, default=60)
    parser.add_argument("--width", type=int, default=3072)
    parser.add_argument("--depth", type=int, default=576)
    args = parser.parse_args()
    products = Products(args.weights, args.width, args.depth)
    results = []
    print("| rows | GB/s | PyTorch | TFLOP/s | PyTorch | times as fast |")
    print("|---|---|---|---|---|---|")
    for rows in args.rows:
        own, other = products.seconds(rows)
        rates = [products.num_bytes / seconds / 1e9 for seconds in (own, other)]
        operations = [products.num_operations * rows / seconds / 1e12 for seconds in (own, other)]
        print(
            f"| {rows} | {rates[0]:.0f} | {rates[1]:.0f} | {operations[0]:.2f} |"
            f" {operations[1]:.2f} | {other / own:.2f} |",
            flush=True,
        )
        results.append({"rows": rows, "seconds": own, "torch_seconds": other})
    print(json.dumps({"results": results}))


if __name__ == "__main__":
    main()
