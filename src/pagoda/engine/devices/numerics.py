"""What the last bit of a sum depends on, beside the model: which code computes it, on what."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import torch

from pagoda.kernels.cpu.fingerprint import fingerprint_of

_ROOMS = ("kernels", "execution", "codecs")
"""Where it is computed. Which of their files matter on a device nobody has to know."""


def cpu_numerics() -> str:
    """The code, what it is compiled by, and the instructions that it uses."""
    from pagoda.kernels.cpu.vector import UNIT

    compilers = f"numba {version('numba')}, llvmlite {version('llvmlite')}"
    return f"cpu, code {_code()}, {compilers}, torch {torch.__version__}, {UNIT}"


def gpu_numerics(device: torch.device) -> str:
    """The code, what it is compiled by, and the device."""
    told = torch.cuda.get_device_properties(device)
    compilers = f"triton {version('triton')}, torch {torch.__version__}"
    name = f"{told.name} {told.major}.{told.minor}, {told.multi_processor_count} processors"
    return f"gpu, code {_code()}, {compilers}, {name}"


def _code() -> str:
    package = Path(__file__).parents[2]
    return fingerprint_of(
        sorted(file for room in _ROOMS for file in package.glob(f"{room}/**/*.py"))
    )
