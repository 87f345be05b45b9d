"""How long a call takes on the device.

On a GPU by events around each call. Before each, one GiB is read, so that nothing is left in L2 and
the launches are queued before the device is free for them: what is timed has no gaps of the host's.
Reading leaves clean lines, which cost nothing to drop; writing would not.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

_FLUSH_BYTES = 2**30
_WARM_UP = 3


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of one call among several."""

    best: float
    median: float

    @classmethod
    def of(cls, seconds: list[float]) -> Timing:
        return cls(min(seconds), statistics.median(seconds))


class Clock:
    """Times calls on one device, each so many times after some that are not counted."""

    def __init__(self, device: torch.device, rounds: int) -> None:
        self._device = device
        self._rounds = rounds
        self._is_gpu = device.type == "cuda"
        self._read: torch.Tensor | None = None

    def time(self, run: Callable[[], object]) -> Timing:
        """The time of `run`, which only launches and waits for nothing."""
        return self._on_gpu(run) if self._is_gpu else self._on_cpu(run)

    def wall(self, run: Callable[[], object]) -> float:
        """Seconds of one call by the wall, from an idle device to an idle one."""
        self.settle()
        start = time.perf_counter()
        run()
        self.settle()
        return time.perf_counter() - start

    def settle(self) -> None:
        """Wait for the device."""
        if self._is_gpu:
            torch.cuda.synchronize(self._device)

    def release(self) -> None:
        """Give back the memory that is read between calls, until it is wanted again."""
        self._read = None

    def _on_gpu(self, run: Callable[[], object]) -> Timing:
        if self._read is None:
            total = torch.cuda.get_device_properties(self._device).total_memory
            num_values = min(_FLUSH_BYTES, total // 16) // 4
            self._read = torch.zeros(num_values, dtype=torch.int32, device=self._device)
        for _ in range(_WARM_UP):
            run()
        self.settle()
        events = [
            (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True))
            for _ in range(self._rounds)
        ]
        for start, end in events:
            self._read.max()
            start.record()
            run()
            end.record()
        self.settle()
        return Timing.of([start.elapsed_time(end) / 1e3 for start, end in events])

    def _on_cpu(self, run: Callable[[], object]) -> Timing:
        seconds = []
        for _ in range(self._rounds):
            start = time.perf_counter()
            run()
            seconds.append(time.perf_counter() - start)
        return Timing.of(seconds)
