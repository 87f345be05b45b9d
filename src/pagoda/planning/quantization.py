"""How many bits a number of the weights takes under each scheme, scales included."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from pagoda.cache.formats import PLAIN_BITS
from pagoda.errors import InvalidOptionError
from pagoda.models.config import ModelConfig


@dataclass(frozen=True, slots=True)
class Scheme:
    """Bits of one number in the matrices of layers, and whether experts alone are meant."""

    name: str
    bits: float
    experts_only: bool = False


def _grouped(name: str, bits: int, group: int, extra_bits: int) -> Scheme:
    """`bits` a number and `extra_bits` of scale and offset for each `group` of them."""
    return Scheme(name, bits + extra_bits / group)


SCHEMES: Mapping[str, Scheme] = MappingProxyType(
    {
        "fp8": Scheme("fp8", 8.0),
        "int8": Scheme("int8", 8.0),
        "w8a8": Scheme("w8a8", 8.0),
        "awq": _grouped("awq", 4, 128, 16 + 4),
        "gptq": _grouped("gptq", 4, 128, 16 + 4),
        "int4": _grouped("int4", 4, 128, 16),
        "bitsandbytes": _grouped("bitsandbytes", 4, 64, 8),
        "nvfp4": _grouped("nvfp4", 4, 16, 8),
        "mxfp4": Scheme("mxfp4", 4.25, experts_only=True),
    }
)
"""By the name of `--quantization`."""

_MOST_BITS = 32
_METHODS = {
    "fbgemm_fp8": "fp8", "awq_marlin": "awq", "gptq_marlin": "gptq", "auto-round": "gptq",
    "auto_round": "gptq", "modelopt_fp4": "nvfp4", "bnb": "bitsandbytes",
}  # fmt: skip


def scheme_named(name: str | None) -> Scheme | None:
    """The scheme of a flag; None for none. Raises `InvalidOptionError` for an unknown one."""
    if name is None or name == "none":
        return None
    known = SCHEMES.get(_METHODS.get(name, name))
    if known is None:
        raise InvalidOptionError("quantization", name, f"one of none, {', '.join(SCHEMES)}")
    return known


def scheme_of(config: ModelConfig) -> Scheme | None:
    """How a checkpoint says that it is stored; None for plain numbers."""
    section = config.section("quantization_config")
    if section is None:
        return None
    method = str(section.values.get("quant_method") or section.values.get("quant_algo") or "")
    method = _METHODS.get(method.lower(), method.lower())
    name = "num_bits" if section.values.get("bits") is None else "bits"
    bits = section.values.get("bits") or _bits_of_groups(section.values)
    if bits is not None and (type(bits) is not int or not 1 <= bits <= _MOST_BITS):
        raise section.error(name, bits, f"must be a whole number from 1 to {_MOST_BITS}")
    if method in SCHEMES and bits in (None, 4, 8) and not (method == "gptq" and bits == 8):
        return SCHEMES[method]
    if bits is None:
        raise section.error("quant_method", method, f"known are {', '.join(SCHEMES)}")
    size = section.optional_integer("group_size", minimum=-1)
    extra = 20 / size if size and size > 0 else 0.0
    return Scheme(method or f"{bits} bits", bits + extra)


def plain(dtype: str) -> Scheme:
    """Numbers of one dtype."""
    if dtype not in PLAIN_BITS:
        raise InvalidOptionError("dtype", dtype, "one of float32, float16, bfloat16")
    return Scheme(dtype, float(PLAIN_BITS[dtype]))


def _bits_of_groups(values: Mapping[str, Any]) -> Any:
    """compressed-tensors and its kin: `config_groups.*.weights.num_bits`."""
    groups = values.get("config_groups")
    if not isinstance(groups, Mapping):
        algorithm = str(values.get("quant_algo") or "").upper()
        return 8 if "FP8" in algorithm else 4 if "4" in algorithm else None
    found = [
        weights.get("num_bits")
        for group in groups.values()
        if isinstance(group, Mapping) and isinstance(weights := group.get("weights"), Mapping)
    ]
    return next((bits for bits in found if bits is not None), None)
