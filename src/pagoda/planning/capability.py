"""What an accelerator computes in, and how fast at most."""

from __future__ import annotations

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
