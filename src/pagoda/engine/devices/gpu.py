"""Which GPU PyTorch can compute on here, or why there is none."""

from __future__ import annotations

import importlib.util
import re
from dataclasses import dataclass, replace

import torch

from pagoda.errors import InvalidOptionError
from pagoda.sizing.device_policy import GPUPolicy

_LEAST_TORCH, _LEAST_TRITON = (2, 11), (3, 6)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What is installed, and what PyTorch sees of the machine."""

    torch_version: str
    cuda_version: str | None
    """The CUDA that PyTorch was built for."""
    hip_version: str | None
    """The ROCm, AMD's, that it was built for."""
    sees_device: bool
    triton_version: str | None
    """Looked for only where a device is seen."""
    device_obstacle: str | None = None
    """What the first device says against it, once it has been looked at closely."""

    @classmethod
    def look(cls) -> Surroundings:
        """As it is now. Does not touch the device."""
        sees_device = torch.cuda.is_available()
        return cls(
            torch_version=torch.__version__,
            cuda_version=torch.version.cuda,
            hip_version=torch.version.hip,
            sees_device=sees_device,
            triton_version=_triton_version() if sees_device else None,
        )

    @classmethod
    def look_closely(cls) -> Surroundings:
        """As `look`; begins to use the first device, and Triton's driver, if all else will do."""
        found = cls.look()
        if found.obstacle is not None:
            return found
        return replace(found, device_obstacle=_device_obstacle(torch.device("cuda", 0)))

    @property
    def obstacle(self) -> str | None:
        """Why no GPU can be computed on, and what would help; None if one can."""
        if self.cuda_version is None and self.hip_version is None:
            return (
                f"PyTorch {self.torch_version} is built for CPUs alone; install a build for CUDA "
                "or ROCm (https://pytorch.org/get-started says how)"
            )
        if not self.sees_device:
            return f"PyTorch {self.torch_version} {self._platform_obstacle}"
        if self.triton_version is None:
            return "Triton, which compiles the kernels, is missing: pip install 'pagoda-llm[cuda]'"
        for name, version, least in (
            ("PyTorch", self.torch_version, _LEAST_TORCH),
            ("Triton", self.triton_version, _LEAST_TRITON),
        ):
            if _numbers(version) < least:
                return f"{name} {version} is too old: it takes {least[0]}.{least[1]} or newer"
        return self.device_obstacle

    @property
    def _platform_obstacle(self) -> str:
        if self.hip_version is not None:
            return (
                f"is built for ROCm {self.hip_version} but sees no GPU: look whether rocminfo "
                "lists one, and HIP_VISIBLE_DEVICES names it if it is set"
            )
        return (
            f"is built for CUDA {self.cuda_version} but sees no GPU: look whether nvidia-smi lists "
            "one under a driver that is new enough, and CUDA_VISIBLE_DEVICES names it if it is set"
        )


def policy_of(device: torch.device) -> GPUPolicy:
    """The device as its driver describes it, which begins to use it."""
    properties = torch.cuda.get_device_properties(device)
    is_rocm = torch.version.hip is not None
    return GPUPolicy(
        name=properties.name,
        memory_bytes=properties.total_memory,
        capability=None if is_rocm else torch.cuda.get_device_capability(device),
    )


def require_gpu(surroundings: Surroundings) -> None:
    """Raises `InvalidOptionError` that names what is missing."""
    if surroundings.obstacle is not None:
        raise InvalidOptionError("device", "cuda", surroundings.obstacle)


def _device_obstacle(device: torch.device) -> str | None:
    """Why a device that is seen cannot be computed on; None if it can. Begins to use it."""
    try:
        obstacle = policy_of(device).obstacle
    except RuntimeError as error:  # somebody else has it for themselves, or it is broken
        return f"the GPU is there but does not answer ({_first_line(error)})"
    return obstacle or _begin_triton()


def _begin_triton() -> str | None:
    """Have Triton load its driver: it compiles a part of that where it has not done so before.

    Returns why it cannot, and what would help.
    """
    import triton

    try:
        triton.runtime.driver.active.get_current_target()
    except Exception as error:  # of whatever kind: it runs a compiler and loads what came of it
        return (
            f"Triton does not get ready ({_first_line(error)}); it takes a C compiler, gcc or what "
            "the variable CC names, and Python's headers, python3-dev or python3-devel"
        )
    return None


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


def _triton_version() -> str | None:
    """None where it is not installed; on ROCm its distribution has other names."""
    if importlib.util.find_spec("triton") is None:
        return None
    import triton

    return str(triton.__version__)


def _numbers(version: str) -> tuple[int, ...]:
    """The first two of a version."""
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])
