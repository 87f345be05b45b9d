"""Reads a GPU's memory, by its driver and by PyTorch."""

from __future__ import annotations

import gc
from typing import Protocol

import torch

from pagoda.sizing.gpu_memory import GPUUsage


class Meter(Protocol):
    """How much of a device's memory is in use."""

    def usage(self) -> GPUUsage:
        """As it is once `settle` is done: what nobody uses is not in use."""
        ...

    def start_peak(self) -> None:
        """Forget the peak so far."""
        ...

    def peak_bytes(self) -> int:
        """The most that PyTorch's tensors took at once since `start_peak`."""
        ...

    def settle(self) -> None:
        """Wait for the device, and give the driver back what PyTorch holds and nobody uses."""
        ...


class GPUMeter:
    """See `Meter`."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def usage(self) -> GPUUsage:
        """As it is once `settle` is done: what nobody uses is not in use."""
        self.settle()
        free_bytes, total_bytes = torch.cuda.mem_get_info(self._device)
        return GPUUsage(
            total_bytes=total_bytes,
            free_bytes=free_bytes,
            reserved_bytes=torch.cuda.memory_reserved(self._device),
            allocated_bytes=torch.cuda.memory_allocated(self._device),
        )

    def start_peak(self) -> None:
        """Forget the peak so far."""
        torch.cuda.reset_peak_memory_stats(self._device)

    def peak_bytes(self) -> int:
        """The most that PyTorch's tensors took at once since `start_peak`."""
        return torch.cuda.max_memory_allocated(self._device)

    def settle(self) -> None:
        """Wait for the device, and give the driver back what PyTorch holds and nobody uses."""
        torch.cuda.synchronize(self._device)
        gc.collect()
        torch.cuda.empty_cache()
