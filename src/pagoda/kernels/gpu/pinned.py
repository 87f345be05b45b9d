"""Small arrays on their way between the host and a device. Nobody waits unless `wait` is called."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_ALIGNMENT = 16


def to_device(values: NDArray[Any], device: torch.device) -> Tensor:
    """The same numbers on `device`, there in time for what is launched after this.

    For a GPU `values` may be changed at once; on a CPU the tensor may share their memory.
    """
    tensor = torch.from_numpy(values)
    if device.type == "cpu":
        return tensor
    # From memory that the system could move away, the copy would hold the host up.
    return tensor.pin_memory().to(device, non_blocking=True)


def all_to_device(arrays: Sequence[NDArray[Any]], device: torch.device) -> list[Tensor]:
    """`to_device` of several arrays, of whatever dtypes and shapes, in one copy."""
    sizes = [-(-array.nbytes // _ALIGNMENT) * _ALIGNMENT for array in arrays]
    parcel = np.zeros(max(_ALIGNMENT, sum(sizes)), np.uint8)
    start, places = 0, []
    for array, size in zip(arrays, sizes, strict=True):
        places.append(slice(start, start + array.nbytes))
        parcel[places[-1]] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        start += size
    sent = to_device(parcel, device)
    return [
        sent[place].view(_torch_dtype(array)).view(array.shape)
        for array, place in zip(arrays, places, strict=True)
    ]


class HostCopy:
    """A tensor's numbers on their way to the host."""

    def __init__(self, tensor: Tensor) -> None:
        """Has its place among the launches: later ones may change `tensor`, on a GPU."""
        self._done: torch.cuda.Event | None = None
        if tensor.device.type == "cpu":
            self._values = tensor
            return
        self._values = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        self._values.copy_(tensor, non_blocking=True)
        self._done = torch.cuda.Event()
        self._done.record(torch.cuda.current_stream(tensor.device))

    @property
    def is_done(self) -> bool:
        """`wait` would not."""
        return self._done is None or self._done.query()

    def wait(self) -> NDArray[Any]:
        """The numbers, once they are here."""
        if self._done is not None:
            self._done.synchronize()
        return self._values.numpy()


def _torch_dtype(array: NDArray[Any]) -> torch.dtype:
    return torch.from_numpy(np.empty(0, array.dtype)).dtype
