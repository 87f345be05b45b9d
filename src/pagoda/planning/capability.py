"""What an accelerator computes in, how fast at most, and what engines refuse on it."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

from pagoda.planning.tables import Accelerator

_FOUR_BIT = (
    "B200", "B300", "GB200", "GB300", "GB10", "RTX-5070", "RTX-5080", "RTX-5090", "RTX-PRO-6000",
    "MI355X",
)  # fmt: skip
"""Devices with products of numbers of 4 bits."""
_FOUR_BIT_GAIN = 4.0
"""Such products over those of fp8, at most: 3.3 on a B300, 2 on most."""
_INT8_GAIN = 2.0
_UNNAMED = ("compressed-tensors", "modelopt", "quark")
"""Methods whose name does not say what is multiplied: taken for the fastest."""

SCHEMES = MappingProxyType(
    {"fp8": 8, "int8": 8, "nvfp4": 4, "mxfp4": 4} | dict.fromkeys(_UNNAMED, 4)
)
"""Schemes of weights that may be multiplied as they are stored, by the least bits."""

_VOLTA = ("V100-16GB", "V100-32GB")
"""Compute capability 7.0; vLLM's table of formats has none but GPTQ and the like for it."""
_NO_BFLOAT16 = (*_VOLTA, "T4")
_CACHES_OF_GPUS = ("fp8_per_token_head", "int8_", "int4_", "turboquant_", "nvfp4")
"""Beginnings of formats that vLLM has in Triton and CUDA alone; its kernels for x86 read fp8 beside
plain numbers (vLLM's pull request 39445), those for ARM nothing else."""
_INSTEAD_OF_BFLOAT16 = "float16"
"""Where a device has no bfloat16."""
_GPU_VENDORS = ("nvidia", "amd")
_GPU_BLOCK = 16
"""What its blocks are a multiple of in vLLM's attention on GPUs."""


@dataclass(frozen=True, slots=True)
class Refused:
    """What vLLM certainly refuses on a device; what is not listed may be refused all the same."""

    dtypes: tuple[str, ...]
    weights: tuple[str, ...]
    """Schemes of weights."""
    caches: tuple[str, ...]
    """Beginnings of formats of the cache."""
    block_unit: int
    """It refuses blocks that are no multiple of it."""


def refused_on(device: Accelerator) -> Refused:
    """What is certainly refused on `device`."""
    is_volta, is_gpu = device.name in _VOLTA, device.vendor in _GPU_VENDORS
    return Refused(
        dtypes=("bfloat16",) if device.name in _NO_BFLOAT16 else (),
        weights=("fp8", "int8", "awq", "nvfp4", "mxfp4") if is_volta else (),
        caches=_caches_refused_on(device),
        block_unit=_GPU_BLOCK if is_gpu else 1,
    )


def _caches_refused_on(device: Accelerator) -> tuple[str, ...]:
    if device.is_cpu:
        return _CACHES_OF_GPUS if device.vendor == "cpu" else ("fp8", *_CACHES_OF_GPUS)
    has_nvfp4 = device.vendor not in _GPU_VENDORS or device.name in _FOUR_BIT
    return (*(("fp8",) if device.name in _VOLTA else ()), *(() if has_nvfp4 else ("nvfp4",)))


def dtype_on(device: Accelerator | None, own: str) -> str:
    """What vLLM computes in where nothing is said, `own` being the checkpoint's dtype."""
    return _INSTEAD_OF_BFLOAT16 if device is not None and own in refused_on(device).dtypes else own


def refusals(
    device: Accelerator,
    *,
    dtype: str,
    quantization: str | None,
    kv_cache_dtype: str,
    block_size: int | None,
) -> list[str]:
    """What of these vLLM certainly refuses on `device`, each in words; None: nothing was said."""
    refused = refused_on(device)
    told = {
        f"{dtype} is refused on {device.name}: name --dtype float16": dtype in refused.dtypes,
        f"weights in {quantization} are refused on {device.name}": quantization in refused.weights,
        f"a cache in {kv_cache_dtype} is refused on {device.name}": (
            kv_cache_dtype.startswith(refused.caches)
        ),
        f"blocks of {block_size} tokens are refused on {device.name}: "
        f"name a multiple of {refused.block_unit}": (
            block_size is not None and block_size % refused.block_unit != 0
        ),
    }
    return [words for words, holds in told.items() if holds]


def product_rate(device: Accelerator, scheme: str | None) -> float:
    """Operations a second at most, of products with weights under a scheme; None: plain numbers.

    Weights alone in 4 bits (AWQ, GPTQ) are multiplied as plain numbers.
    """
    bits = SCHEMES.get(scheme or "")
    fp8 = device.fp8_rate or device.bf16_rate
    if bits is None:
        return device.bf16_rate
    if bits == 4 and device.name in _FOUR_BIT:
        return _FOUR_BIT_GAIN * fp8
    if scheme == "int8" or scheme in _UNNAMED:
        return max(fp8, _INT8_GAIN * device.bf16_rate)
    return device.bf16_rate if bits == 4 else fp8
