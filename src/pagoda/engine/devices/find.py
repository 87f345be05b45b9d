"""From `EngineOptions.device` to the backend that runs there."""

from __future__ import annotations

import logging
from collections.abc import Callable

from pagoda.engine.devices.backend import Backend
from pagoda.engine.devices.gpu import Surroundings, require_gpu
from pagoda.engine.options import EngineOptions

logger = logging.getLogger("pagoda")


def find_backend(options: EngineOptions) -> Backend:
    """The backend of the device that `options` name, or of the one that is here.

    Raises `InvalidOptionError` for a GPU where none can be used. What a device needs is imported
    only where it is used: nobody on a CPU loads Triton, and nobody on a GPU compiles for the CPU.
    """
    return _gpu_backend() if wants_gpu(options, Surroundings.look_closely) else _cpu_backend()


def wants_gpu(options: EngineOptions, look: Callable[[], Surroundings]) -> bool:
    """Whether `options` ask for a GPU, or leave it to what `look` finds and it can be used.

    Raises `InvalidOptionError` where one is asked for that cannot be used.
    """
    if options.device == "cpu":
        return False
    surroundings = look()
    if options.device == "cuda":
        require_gpu(surroundings)
        return True
    if surroundings.obstacle is None:
        return True
    if surroundings.sees_device:
        logger.warning("the GPU is left alone: %s", surroundings.obstacle)
    return False


def _cpu_backend() -> Backend:
    from pagoda.engine.devices.cpu_backend import CPUBackend

    return CPUBackend()


def _gpu_backend() -> Backend:
    from pagoda.engine.devices.gpu_backend import GPUBackend

    return GPUBackend.open()
