"""Where a run measures, and how large."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from gpu_parts.clock import Clock
from pagoda.roofline import MachineLimits

DTYPE_NAMES = {torch.bfloat16: "bfloat16", torch.float16: "float16", torch.float32: "float32"}


@dataclass(frozen=True, slots=True)
class Setting:
    """What every part of a run needs to know."""

    device: torch.device
    dtype: torch.dtype
    tiny: bool
    """Shapes that Triton's interpreter gets through in seconds; figures mean nothing."""
    quick: bool
    models: tuple[str, ...]
    clock: Clock

    @property
    def is_gpu(self) -> bool:
        return self.device.type == "cuda"

    @property
    def dtype_name(self) -> str:
        return DTYPE_NAMES[self.dtype]

    @property
    def rounds(self) -> int:
        """Rounds of whole workloads."""
        return 1 if self.tiny else 2 if self.quick else 3

    def free_bytes(self) -> int:
        """What PyTorch could still take of the device's memory."""
        if not self.is_gpu:
            return 2**30
        torch.cuda.empty_cache()
        return torch.cuda.mem_get_info(self.device)[0]

    def generator(self, seed: int) -> torch.Generator:
        """Draws on the device itself."""
        return torch.Generator(self.device).manual_seed(seed)


@dataclass(frozen=True, slots=True)
class Limits:
    """What the device was seen to do in this run."""

    copy_bandwidth: float
    """Bytes a second read and written."""
    product_rate: float
    """Operations a second of matrix products in the run's dtype."""

    @property
    def for_roofline(self) -> MachineLimits:
        """As `pagoda.planning` takes them."""
        return MachineLimits(self.copy_bandwidth, self.product_rate)
