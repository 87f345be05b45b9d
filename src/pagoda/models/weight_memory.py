"""Where weights are put together, and where they stay."""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np
import torch

from pagoda.errors import CapacityError

_LINE_BYTES = 64


class WeightMemory(Protocol):
    """Memory for the weights of one decoder."""

    def tensor(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """The next tensor, uninitialised, in main memory."""
        ...

    def settle(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor, filled by now, where it stays."""
        ...

    def together(self, count: int) -> WeightMemory:
        """For the next `count` tensors, all of one shape and dtype: where kernels need it, they
        come to lie one behind the other."""
        ...


class HostMemory:
    """One allocation for all weights, in main memory.

    NumPy takes huge pages for an array this large where the system has them, and weights are read
    from end to end in every step: fewer addresses have to be looked up. Raises `CapacityError`
    where the system has no such memory.
    """

    def __init__(self, size_bytes: int, num_tensors: int) -> None:
        try:
            memory = np.empty(size_bytes + (num_tensors + 1) * _LINE_BYTES, np.uint8)
        except MemoryError as error:
            limit = "more than the system gives this process (`ulimit -v` tells its bound)"
            raise CapacityError("weights", f"{size_bytes:,} bytes", limit) from error
        self._left = torch.from_numpy(memory)

    def tensor(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """The next tensor, uninitialised; it begins with a cache line."""
        start = -self._left.data_ptr() % _LINE_BYTES
        end = start + math.prod(shape) * dtype.itemsize
        taken, self._left = self._left[start:end], self._left[end:]
        return taken.view(dtype).view(shape)

    def settle(self, tensor: torch.Tensor) -> torch.Tensor:
        """The very tensor."""
        return tensor

    def together(self, count: int) -> WeightMemory:
        """This memory: on CPUs each is looked up by itself."""
        return self


class GPUMemory:
    """Memory of a device; main memory holds one weight at a time, until it is moved."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def tensor(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """A tensor of its own, uninitialised."""
        return torch.empty(shape, dtype=dtype)

    def settle(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy on the device."""
        return tensor.to(self._device)

    def together(self, count: int) -> WeightMemory:
        """A memory of one allocation."""
        return _StackMemory(self._device, count)


class _StackMemory(GPUMemory):
    """`count` tensors of one shape and dtype, one behind the other on a device."""

    def __init__(self, device: torch.device, count: int) -> None:
        super().__init__(device)
        self._count = count
        self._left: list[torch.Tensor] = []

    def settle(self, tensor: torch.Tensor) -> torch.Tensor:
        """The next place on the device, with a copy."""
        if not self._left:
            shape = (self._count, *tensor.shape)
            stack = torch.empty(shape, dtype=tensor.dtype, device=self._device)
            self._left = list(stack.unbind())
        return self._left.pop(0).copy_(tensor)
