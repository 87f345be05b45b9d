"""How a key and a value vector are stored: bits per number, and what comes on top.

    bits of one head and token = head_size × key_bits + key_extra
                               + head_size_v × value_bits + value_extra,   rounded up to `align`

Sources: the formats of vLLM's `--kv-cache-dtype` under its names (per tensor fp8 keeps no scales;
per-token-head modes keep one float32 scale for K and one for V; nvfp4 keeps an fp8 scale for each
16 numbers; TurboQuant keeps a norm beside K, a scale and an offset beside V), plain numbers, and
what `pagoda.codecs` calibrates for a model (int4, int3, int2).
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType

from pagoda.cache.own_format import is_own, own_sides
from pagoda.errors import InvalidOptionError


@dataclass(frozen=True, slots=True)
class VectorFormat:
    """How one head's key and value vector of one token are stored."""

    key_bits: Fraction
    value_bits: Fraction
    key_extra: int = 0
    """Bits beside a key vector, whatever its width."""
    value_extra: int = 0
    align: int = 1
    """Bits that key and value together are padded to a multiple of."""
    head_multiple: int = 16
    """Numbers that the width of heads is a multiple of, where Pagoda's codecs make them."""

    def bits(self, head_size: int, head_size_v: int) -> int:
        """Bits of one key vector and one value vector, padding included."""
        key = _ceil_times(head_size, self.key_bits) + self.key_extra
        value = _ceil_times(head_size_v, self.value_bits) + self.value_extra
        return -(-(key + value) // self.align) * self.align


def _ceil_times(count: int, share: Fraction) -> int:
    """⌈count × share⌉ in whole numbers: plans ask for it a hundred thousand times."""
    return -(-count * share.numerator // share.denominator)


def _plain(bits: int) -> VectorFormat:
    return VectorFormat(Fraction(bits), Fraction(bits))


def _scaled(bits: int) -> VectorFormat:
    return VectorFormat(Fraction(bits), Fraction(bits), key_extra=32, value_extra=32, align=8)


def _turboquant(key_bits: int, value_bits: int, key_extra: int = 16) -> VectorFormat:
    return VectorFormat(Fraction(key_bits), Fraction(value_bits), key_extra, 32, align=16)


def _calibrated(key_quarters: int, value_quarters: int) -> VectorFormat:
    """Bits of a number in each quarter of a vector, together; and a scale of a byte."""
    return VectorFormat(Fraction(key_quarters, 4), Fraction(value_quarters, 4), 8, 8, 8, 64)


PLAIN_BITS = MappingProxyType(
    {
        "float32": 32,
        "float16": 16,
        "bfloat16": 16,
        "fp8_e4m3": 8,
        "fp8_e5m2": 8,
        "int8": 8,
        "int4": 4,
    }
)
"""Formats that are nothing but numbers of one width."""

FLOAT_DTYPES = ("float32", "float16", "bfloat16")
"""What weights and states are computed in."""

FORMATS = MappingProxyType(
    {name: _plain(bits) for name, bits in PLAIN_BITS.items()}
    | {
        "int8_per_token_head": _scaled(8),
        "fp8_per_token_head": _scaled(8),
        "int4_per_token_head": _scaled(4),
        "nvfp4": VectorFormat(Fraction(9, 2), Fraction(9, 2), align=8),
        "turboquant_k8v4": _turboquant(8, 4, key_extra=0),
        "turboquant_4bit_nc": _turboquant(4, 4),
        "turboquant_k3v4_nc": _turboquant(3, 4),
        "turboquant_3bit_nc": _turboquant(3, 3),
        "int4": _calibrated(18, 17),
        "int3": _calibrated(13, 12),
        "int2": _calibrated(10, 9),
    }
)

CALIBRATED_FORMATS = ("int4", "int3", "int2")
"""Those that are calibrated for a model: Pagoda's own."""

UNCALIBRATED_FORMATS = (
    "fp8_e4m3",
    "fp8_e5m2",
    "fp8_per_token_head",
    "int8_per_token_head",
    "int4_per_token_head",
    "turboquant_k8v4",
    "turboquant_4bit_nc",
    "turboquant_k3v4_nc",
    "turboquant_3bit_nc",
)
"""Those that are codes without anything known of a model."""

CODED_FORMATS = (*UNCALIBRATED_FORMATS, *CALIBRATED_FORMATS)
"""Those that Pagoda's own cache can be stored in, beside plain numbers of a device."""

LATENT_BYTES = MappingProxyType({"fp8_ds_mla": 656, "nvfp4_ds_mla": 352})
"""Bytes of one token of a latent of 512 + 64 numbers, in packed formats that exist for it alone:
fp8_ds_mla is 512 fp8 numbers, 4 float32 scales and 64 bfloat16 numbers."""

INT8_LATENTS = "int8_per_group"
LATENT_FORMATS = ("fp8_per_group", INT8_LATENTS)
"""What Pagoda's own cache stores latents in beside plain numbers: codes of eight bits, a float32
scale for each `LATENT_GROUP` of them, and the shared key in bfloat16. Of 512 + 64 numbers the
first is fp8_ds_mla."""

LATENT_GROUP = 128

ALIASES = MappingProxyType(
    {
        "fp8": "fp8_e4m3",
        "fp16": "float16",
        "half": "float16",
        "bf16": "bfloat16",
        "fp32": "float32",
        "float": "float32",
        "fp8_inc": "fp8_e4m3",
    }
)


_GUARDED = "turboquant_"
_GUARDED_LAYERS = 2


def guarded_layers(name: str, num_layers: int) -> frozenset[int]:
    """Layers that a format leaves as they are: TurboQuant's the two at each end, as in vLLM."""
    if not name.startswith(_GUARDED):
        return frozenset()
    count = min(_GUARDED_LAYERS, num_layers // 2)
    return frozenset((*range(count), *range(num_layers - count, num_layers)))


def is_coded(name: str) -> bool:
    """Whether K and V are codes in Pagoda's own cache, not plain numbers of a device."""
    return name in CODED_FORMATS or is_own(name)


def canonical(name: str) -> str:
    """The name of a format or dtype without its aliases."""
    return ALIASES.get(name, name)


def vector_format(name: str) -> VectorFormat:
    """The format of that name, or `InvalidOptionError`."""
    if is_own(name):
        key, value = own_sides(name)
        widths = Fraction(key.bits), Fraction(value.bits)
        return VectorFormat(*widths, key.extra_bits, value.extra_bits)
    if name not in FORMATS:
        raise InvalidOptionError("dtype", name, f"one of {', '.join(FORMATS)}")
    return FORMATS[name]
