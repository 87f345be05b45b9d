"""Small arrays on their way from the host to a device."""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import NDArray


def to_device(values: NDArray[Any], device: torch.device) -> torch.Tensor:
    """The same numbers on `device`. Nobody waits: the copy has its place among the launches.

    On a GPU `values` may be changed at once; on a CPU the tensor may share their memory.
    """
    tensor = torch.from_numpy(values)
    if device.type == "cpu":
        return tensor
    # From memory that the system could move away, the copy would hold the host up.
    return tensor.pin_memory().to(device, non_blocking=True)
