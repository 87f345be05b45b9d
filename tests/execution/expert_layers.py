"""Random experts of a layer, and how they are run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numba import njit, prange

from pagoda.execution.cpu.addresses import Addresses
from pagoda.execution.cpu.expert_table import expert_fields, experts_memory
from pagoda.execution.cpu.panel_matrix import PanelMatrix
from pagoda.execution.cpu.workspace import Workspace
from pagoda.kernels.cpu.experts import (
    EXPERT_PHASES,
    ExpertsMemory,
    experts,
)
from pagoda.kernels.cpu.int8_rows import record_bytes, round_routine, round_some
from pagoda.kernels.cpu.kernel import kernel
from pagoda.kernels.cpu.multiply import MEMORY_BYTES
from pagoda.kernels.cpu.sums import gate_routine
from pagoda.kernels.cpu.team import first_phase, phases, team_of
from pagoda.models.decoder import ExpertsSpec
from pagoda.models.expert_weights import ExpertsWeights


@kernel
def run_by_threads(
    places: int, memory: int, first: int, num_threads: int, fields: int, work: int, x: int,
    rows: int, records: int, target: int, adds: int, following: int,
) -> None:  # fmt: skip
    for number in prange(num_threads):
        thread = (first + number) % num_threads
        experts(
            first_phase(places, num_threads), team_of(thread, num_threads, places),
            memory + thread * MEMORY_BYTES, fields, work, x, rows, records, target, adds,
            following,
        )  # fmt: skip


@njit
def round_all(routine: int, records: int, x: int, rows: int, width: int) -> None:
    round_some(routine, records, x, 0, rows, rows, width)


def some_weights(
    spec: ExpertsSpec, hidden: int, dtype: torch.dtype
) -> ExpertsWeights[torch.Tensor]:
    """Random ones of a size that leaves numbers near 1."""

    def matrix(width: int, depth: int) -> torch.Tensor:
        return (torch.randn(width, depth) / depth**0.5).to(dtype)

    def bias(*shape: int) -> torch.Tensor:
        return torch.randn(shape).to(dtype)

    count, inner, shared = spec.num_experts, spec.intermediate_size, spec.shared
    weights = ExpertsWeights(
        router=2 * matrix(count + spec.shared_gate, hidden),
        gate=tuple(matrix(inner, hidden) for _ in range(count)),
        up=tuple(matrix(inner, hidden) for _ in range(count)),
        down=tuple(matrix(hidden, inner) for _ in range(count)),
        router_bias=bias(count) if spec.router_bias else None,
        correction=bias(count) if spec.correction_bias else None,
    )
    if spec.bias:
        weights = replace(
            weights, gate_bias=bias(count, inner), up_bias=bias(count, inner),
            down_bias=bias(count, hidden),
        )  # fmt: skip
    if shared is not None:
        size = shared.intermediate_size
        weights = replace(
            weights, shared_gate=matrix(size, hidden), shared_up=matrix(size, hidden),
            shared_down=matrix(hidden, size),
        )  # fmt: skip
        if shared.bias:
            weights = replace(
                weights, shared_gate_bias=bias(size), shared_up_bias=bias(size),
                shared_down_bias=bias(hidden),
            )  # fmt: skip
    return weights


MATRICES = ("router", "shared_gate", "shared_up", "shared_down")
LISTS = ("gate", "up", "down")


def in_panels(weights: ExpertsWeights[torch.Tensor]) -> ExpertsWeights[PanelMatrix]:
    changed: dict[str, Any] = {}
    for name in MATRICES:
        if (matrix := getattr(weights, name)) is not None:
            changed[name] = PanelMatrix.plain(matrix.clone())
    for name in LISTS:
        changed[name] = tuple(PanelMatrix.plain(each.clone()) for each in getattr(weights, name))
    return replace(weights, **changed)


@dataclass
class Layer:
    """Experts, ready to run."""

    spec: ExpertsSpec
    weights: ExpertsWeights[PanelMatrix]
    dtype: torch.dtype
    num_threads: int = 1
    first_thread: int = 0
    """Which begins, and does it all where nobody else can run."""
    rounds: bool = False

    def __post_init__(self) -> None:
        paired = self.dtype == torch.bfloat16
        self.kept = Addresses()
        self.gate = gate_routine(paired, self.spec.activation.value)
        self.fields = expert_fields(
            self.spec, self.weights, self.dtype, self.gate.address, self.kept
        )
        self.workspace = Workspace()

    @property
    def hidden(self) -> int:
        return self.weights.router.shape[1]

    def run(self, x: torch.Tensor, stream: torch.Tensor | None = None) -> torch.Tensor:
        """Added to the stream, which is changed, or by itself."""
        num_rows = len(x)
        out = torch.full((num_rows, self.hidden), torch.nan) if stream is None else stream
        work = experts_memory(
            self.workspace, [self.spec], self.hidden, num_rows,
            np.dtype(np.uint16 if self.dtype == torch.bfloat16 else np.float32),
            rounds_rows=self.rounds,
        )  # fmt: skip
        records = np.zeros((num_rows, record_bytes(self.widest)), np.uint8)
        if self.rounds:
            round_all(
                round_routine().address, records.ctypes.data, x.data_ptr(), num_rows, self.hidden
            )
        counters = phases(EXPERT_PHASES, self.num_threads)
        memory = np.full(self.num_threads * MEMORY_BYTES, 0xFF, np.uint8)
        run_by_threads(
            counters.ctypes.data, memory.ctypes.data, self.first_thread, self.num_threads,
            self.fields.ctypes.data, work.ctypes.data, x.data_ptr(), num_rows,
            records.ctypes.data if self.rounds else 0, out.data_ptr(), int(stream is not None),
            self.weights.router.address,
        )  # fmt: skip
        self.work = ExpertsMemory(*work.tolist())
        return out

    @property
    def widest(self) -> int:
        shared = self.spec.shared
        return max(self.hidden, 0 if shared is None else shared.intermediate_size)
