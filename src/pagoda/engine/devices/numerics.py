"""What the last bit of a sum depends on, beside the model: which code computes it, on what."""

from __future__ import annotations

from hashlib import sha256
from importlib.metadata import version
from pathlib import Path

import torch

from pagoda.kernels.cpu.fingerprint import fingerprint_of

_ROOMS = ("models", "execution", "kernels", "codecs", "storage")
"""Where weights become what is computed with, where it is computed, and where its bytes are laid
out. Which of their files matter on a device nobody has to know."""


def cpu_numerics() -> str:
    """The code, what it is compiled by, and the CPU that it is compiled for.

    Sums that may be taken in any order are taken as suits a CPU of that name: two that have the
    same instructions may differ in the last bit.
    """
    from pagoda.kernels.cpu.vector import UNIT

    compilers = f"numba {version('numba')}, llvmlite {version('llvmlite')}"
    return f"cpu, code {_code()}, {compilers}, torch {torch.__version__}, {UNIT}, {_targets()}"


def gpu_numerics(device: torch.device) -> str:
    """The code, what it is compiled by, and the device.

    Triton is asked itself: on ROCm its distribution has other names.
    """
    import triton

    told = torch.cuda.get_device_properties(device)
    compilers = f"triton {triton.__version__}, torch {torch.__version__}"
    name = f"{told.name} {told.major}.{told.minor}, {told.multi_processor_count} processors"
    return f"gpu, code {_code()}, {compilers}, {name}"


def _targets() -> str:
    """This CPU, and the one that Numba was told to compile for, if it was."""
    import llvmlite.binding as llvm
    from numba.core import config

    features = (name for name, present in llvm.get_host_cpu_features().items() if present)
    told = f"{llvm.get_host_cpu_name()} {_short_digest(','.join(sorted(features)))}"
    name, chosen = getattr(config, "CPU_NAME", None), getattr(config, "CPU_FEATURES", None)
    if name is None and chosen is None:
        return told
    return f"{told}, compiled for {name} {_short_digest(chosen or '')}"


def _short_digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()[:16]


def _code() -> str:
    package = Path(__file__).parents[2]
    return fingerprint_of(
        sorted(file for room in _ROOMS for file in package.glob(f"{room}/**/*.py"))
    )
