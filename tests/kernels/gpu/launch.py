"""One launch of the compile check, and tensors for it that hold nothing.

A launch is a launcher called as the executor calls it, so that what is compiled is what would run:
signature, constants and number of warps are the launcher's own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

META = torch.device("meta")


@dataclass(frozen=True, slots=True)
class Launch:
    """A name for messages, and what launches the kernels when it is called."""

    name: str
    call: Callable[[], None]


def numbers(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """A tensor that holds nothing."""
    return torch.empty(shape, dtype=dtype, device=META)


def integers(*shape: int) -> torch.Tensor:
    """As `numbers`, int32."""
    return numbers(*shape, dtype=torch.int32)
