"""A GPU that is made up: its kernels in Triton's interpreter, its memory in figures.

What a backend would ask a driver is asked of `FakeMeter`, and graphs are functions that count.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from pagoda.engine.devices.gpu_backend import GPUBackend
from pagoda.sizing.device_policy import GPUPolicy
from pagoda.sizing.gpu_memory import GPUUsage
from triton_device import DEVICE

GIB = 2**30
CARD = GPUPolicy("Test Card", 16 * GIB, (9, 0))
UNUSED_BYTES = GIB // 4
"""That PyTorch holds and has no tensor in."""
GRAPH_BYTES, KERNEL_BYTES, PEAK_BYTES = 3_000_000, 50_000_000, 200_000_000


@dataclass
class FakeMeter:
    """A device of 16 GiB of which others have 1; weights and the like take 1, caches `caches`."""

    graphs: int = 0
    others: int = GIB
    caches: int = 0
    steps_taken: bool = False
    calls: list[str] = field(default_factory=list)

    def usage(self) -> GPUUsage:
        # By PyTorch, once the first weight is there.
        held = GIB + UNUSED_BYTES + self.caches if self.calls else 0
        self.settle()
        self.calls.append("usage")
        outside = self.others + KERNEL_BYTES * self.steps_taken + GRAPH_BYTES * self.graphs
        return GPUUsage(16 * GIB, 16 * GIB - outside - held, held, max(0, held - UNUSED_BYTES))

    def start_peak(self) -> None:
        self.calls.append("start")

    def peak_bytes(self) -> int:
        return GIB + self.caches + PEAK_BYTES

    def settle(self) -> None:
        self.steps_taken = self.steps_taken or "start" in self.calls
        self.calls.append("settle")


@dataclass
class Counter:
    """In place of CUDA graphs."""

    meter: FakeMeter
    replays: int = 0

    def __call__(self, launches: Callable[[], None]) -> Callable[[], None]:
        self.meter.graphs += 1
        launches()

        def replay() -> None:
            self.replays += 1
            launches()

        return replay


@dataclass
class Card:
    """A backend on the made-up device, and what it is made of."""

    meter: FakeMeter = field(default_factory=FakeMeter)
    counters: list[Counter] = field(default_factory=list)

    def backend(self) -> GPUBackend:
        return GPUBackend(DEVICE, CARD, self.meter, self._counter)

    def _counter(self) -> Counter:
        self.counters.append(Counter(self.meter))
        return self.counters[-1]
