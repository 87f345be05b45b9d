"""Whole numbers on their way to the device: many arrays in one copy.

    staging, pinned    | token_ids | positions | slot_mapping | …       one of two, in turn
    device             | token_ids | positions | slot_mapping | …       always the same

An array begins where those before it end, on a boundary that suits every kernel, so arrays of the
same shapes in the same order have the same addresses on the device, step after step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import cycle
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from pagoda.sizing.alignment import ALIGNMENT, aligned

Integers = NDArray[np.int32] | NDArray[np.int64]

_TORCH_DTYPES = {np.dtype(np.int32): torch.int32, np.dtype(np.int64): torch.int64}


class Place(NamedTuple):
    """Where an array lies on the device."""

    offset: int
    """In bytes."""
    dtype: torch.dtype
    shape: tuple[int, ...]


class _Event(Protocol):
    """A moment in the device's work, as `torch.cuda.Event` has it."""

    def record(self) -> None: ...

    def synchronize(self) -> None: ...


class _Past:
    """The event of a device that has done its work when a call returns."""

    def record(self) -> None: ...

    def synchronize(self) -> None: ...


class _Staging:
    """Host memory that the device copies from, and when it has done so."""

    def __init__(self, size_bytes: int, device: torch.device) -> None:
        on_gpu = device.type == "cuda"
        self.memory = torch.empty(size_bytes, dtype=torch.uint8, pin_memory=on_gpu)
        self.bytes = self.memory.numpy()
        self.copied: _Event = torch.cuda.Event() if on_gpu else _Past()


class InputUpload:
    """Carries arrays to one memory on the device, which the next arrays overwrite.

    While the device still copies what one call staged, the next call fills the other staging
    memory; it waits only for the copy of the call before the last. Copies are ordered with the work
    of the current stream, so nothing is overwritten that a launched kernel has yet to read.
    """

    def __init__(self, size_bytes: int, device: torch.device) -> None:
        self.size_bytes = aligned(max(size_bytes, ALIGNMENT))
        self._memory = torch.empty(self.size_bytes, dtype=torch.uint8, device=device)
        self._turns = cycle([_Staging(self.size_bytes, device) for _ in range(2)])

    def send(self, arrays: Sequence[Integers]) -> list[Place]:
        """Copy `arrays`, which may change once this returns; together they must fit."""
        staging = next(self._turns)
        staging.copied.synchronize()
        places = lay_out([(array.dtype, array.shape) for array in arrays])
        end = 0
        for array, place in zip(arrays, places, strict=True):
            end = place.offset + array.nbytes
            staging.bytes[place.offset : end].view(array.dtype)[:] = array.reshape(-1)
        self._memory[:end].copy_(staging.memory[:end], non_blocking=True)
        staging.copied.record()
        return places

    def at(self, place: Place) -> torch.Tensor:
        """The array on the device."""
        end = place.offset + math.prod(place.shape) * place.dtype.itemsize
        return self._memory[place.offset : end].view(place.dtype).view(place.shape)


def lay_out(arrays: Sequence[tuple[np.dtype, tuple[int, ...]]]) -> list[Place]:
    """Where arrays of these dtypes and shapes go."""
    places, end = [], 0
    for dtype, shape in arrays:
        places.append(Place(end, _TORCH_DTYPES[dtype], shape))
        end = aligned(end + math.prod(shape) * dtype.itemsize)
    return places


def bytes_of(arrays: Sequence[Integers]) -> int:
    """Memory that `arrays` take together."""
    return sum(aligned(array.nbytes) for array in arrays)
