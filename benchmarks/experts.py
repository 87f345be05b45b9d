"""Experts of a layer, of which one row reads those that it goes to: how fast, and by how much less.

Timed are layers with weights of their own, one after the other, each from its router to the sum.
Every round has another row, so that it meets experts that no cache holds. GB/s are of the weights
of the experts that it goes to, against what memory gives when it is read from end to end; "of all"
is the time to that of a row that goes to every expert. The best of several rounds counts, since
other work on the machine only ever slows a round down.

    python benchmarks/experts.py [--used 1 2 4 8] [--experts 32] [--dtype float32]
"""

from __future__ import annotations

import argparse
import json
from itertools import cycle

import numba
import numpy as np
import torch
from numba import njit, prange

from pagoda.engine.devices.machine import best_seconds, read_bandwidth
from pagoda.execution.cpu.addresses import Addresses
from pagoda.execution.cpu.expert_table import expert_fields, experts_memory
from pagoda.execution.cpu.panel_matrix import PanelMatrix
from pagoda.execution.cpu.workspace import Workspace
from pagoda.kernels.array import Array
from pagoda.kernels.cpu.experts import (
    EXPERT_PHASES,
    experts,
)
from pagoda.kernels.cpu.multiply import MEMORY_BYTES
from pagoda.kernels.cpu.sums import gate_routine
from pagoda.kernels.cpu.team import PHASE_BYTES, first_phase, phases, team_of
from pagoda.models.decoder import ExpertsSpec
from pagoda.models.expert_weights import ExpertsWeights

_ROUNDS = 60


@njit(parallel=True)
def _run_layers(
    places: int, memory: int, num_threads: int, layers: Array, work: int, x: int, out: int,
    following: int,
) -> None:  # fmt: skip
    for thread in prange(num_threads):
        team = team_of(thread, num_threads, places)
        for number in range(len(layers)):
            phase = first_phase(places, num_threads) + number * EXPERT_PHASES * PHASE_BYTES
            experts(
                phase, team,
                memory + thread * MEMORY_BYTES, layers[number], work, x, 1, 0, out, 0, following,
            )  # fmt: skip


class Layers:
    """Layers of experts with routers of their own."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._dtype = getattr(torch, args.dtype)
        self._hidden, self._num_experts, self._inner = args.hidden, args.experts, args.inner
        self._weights = [self._some_weights() for _ in range(args.layers)]
        self._num_threads = numba.get_num_threads()
        self._memory = np.empty(self._num_threads * MEMORY_BYTES, np.uint8)

    @property
    def expert_bytes(self) -> int:
        """Of one expert in every layer."""
        size = 3 * self._hidden * self._inner * self._dtype.itemsize
        return len(self._weights) * size

    def _some_weights(self) -> ExpertsWeights[PanelMatrix]:
        hidden, inner, count = self._hidden, self._inner, self._num_experts

        def copies(width: int, depth: int) -> tuple[PanelMatrix, ...]:
            matrix = self._random(width, depth)
            return tuple(PanelMatrix.plain(matrix.clone()) for _ in range(count))

        return ExpertsWeights(
            router=PanelMatrix.plain(self._random(count, hidden)),
            gate=copies(inner, hidden),
            up=copies(inner, hidden),
            down=copies(hidden, inner),
        )

    def _random(self, *shape: int) -> torch.Tensor:
        return (torch.randn(shape) / shape[-1] ** 0.5).to(self._dtype)

    def seconds(self, num_used: int) -> float:
        """Of all layers, for a row that goes to so many experts of each."""
        is_paired = self._dtype == torch.bfloat16
        spec = ExpertsSpec(self._num_experts, num_used, self._inner)
        kept = Addresses()
        gate = gate_routine(is_paired, "silu")
        fields = [
            expert_fields(spec, each, self._dtype, gate.address, kept) for each in self._weights
        ]
        places = np.array([each.ctypes.data for each in fields])
        kind = np.dtype(np.uint16 if is_paired else np.float32)
        workspace = Workspace()
        work = experts_memory(workspace, [spec], self._hidden, 1, kind, rounds_rows=False)
        many = self._random(_ROUNDS, self._hidden)
        inputs, out = cycle(many), torch.empty(self._hidden)
        following = self._weights[0].router.address

        def run() -> None:
            counters = phases(EXPERT_PHASES * len(places), self._num_threads)
            _run_layers(
                counters.ctypes.data, self._memory.ctypes.data, self._num_threads, places,
                work.ctypes.data, next(inputs).data_ptr(), out.data_ptr(), following,
            )  # fmt: skip

        return best_seconds(run, _ROUNDS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--used", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--experts", type=int, default=32)
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--inner", type=int, default=512)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    args = parser.parse_args()
    if not 1 <= min(args.used) <= max(args.used) <= args.experts:
        parser.error(f"a row goes to 1 to {args.experts} experts")
    layers, bandwidth, results = Layers(args), read_bandwidth(), []
    whole = layers.seconds(args.experts)
    print("| experts of the row | ms a layer | GB/s | of memory's | of all |")
    print("|---|---|---|---|---|")
    for used in sorted({*args.used, args.experts}):
        seconds = whole if used == args.experts else layers.seconds(used)
        bandwidth = max(bandwidth, read_bandwidth())
        rate = used * layers.expert_bytes / seconds
        print(
            f"| {used} of {args.experts} | {seconds / args.layers * 1e3:.3f} | {rate / 1e9:.1f} |"
            f" {rate / bandwidth:.2f} | {seconds / whole:.3f} |",
            flush=True,
        )
        results.append({"used": used, "seconds": seconds, "rate": rate})
    print(f"limit: memory {bandwidth / 1e9:.1f} GB/s")
    print(json.dumps({"results": results, "bandwidth": bandwidth}))


if __name__ == "__main__":
    main()
