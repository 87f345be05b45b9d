"""How keys and values are stored: a codec is a row, under vLLM's name where that has one.

Bytes follow from `pagoda.cache.formats`, which has a row of the same name; a test compares.
"""

from __future__ import annotations

from types import MappingProxyType

from pagoda.cache.own_format import is_own
from pagoda.codecs.calibrated import CALIBRATED, CalibratedCodec
from pagoda.codecs.codec import Codec, SideCodec, VectorCodec
from pagoda.codecs.latent import LATENT_CODECS, LatentCodec
from pagoda.codecs.own import name_of, own_codec
from pagoda.errors import InvalidOptionError

_UNSCALED = {name: VectorCodec(name, 8) for name in ("e4m3", "e5m2")}
_UNIFORM_4, _UNIFORM_3 = (
    VectorCodec("levels", bits, "float16", has_offset=True) for bits in (4, 3)
)
_ROTATED_4 = VectorCodec("levels", 4, "float16", has_offset=True, turns="signs")
_NORM_4, _NORM_3 = (
    VectorCodec("levels", bits, "float16", fit="norm", turns="hadamard") for bits in (4, 3)
)


def _both(codec: VectorCodec) -> Codec:
    return Codec(codec, codec)


CODECS = MappingProxyType(
    {
        "fp8_e4m3": _both(_UNSCALED["e4m3"]),
        "fp8_e5m2": _both(_UNSCALED["e5m2"]),
        "fp8_per_token_head": _both(VectorCodec("e4m3", 8, "float32")),
        "int8_per_token_head": _both(VectorCodec("int8", 8, "float32")),
        "int4_per_token_head": _both(_ROTATED_4),
        "turboquant_k8v4": Codec(_UNSCALED["e4m3"], _UNIFORM_4),
        "turboquant_4bit_nc": Codec(_NORM_4, _UNIFORM_4),
        "turboquant_k3v4_nc": Codec(_NORM_3, _UNIFORM_4),
        "turboquant_3bit_nc": Codec(_NORM_3, _UNIFORM_3),
    }
)
"""Codecs by the name of `--kv-cache-dtype`."""


CENTRED = ("fp8_e4m3",)
"""Those whose keys are stored less a part of their mean on CPUs, where softmax does not see it; the
same without that is `e4m3/e4m3`."""


def codec_of(name: str) -> Codec | None:
    """The codec of that name, a row's or one that says itself; None: it is none.

    Raises `InvalidOptionError` for one that cannot be, and for one that is calibrated for a model.
    """
    if name in CALIBRATED:
        raise InvalidOptionError("kv_cache_dtype", name, "needs a calibrated codec")
    return own_codec(name) if is_own(name) else CODECS.get(name)


__all__ = [
    "CALIBRATED",
    "CENTRED",
    "CODECS",
    "LATENT_CODECS",
    "CalibratedCodec",
    "Codec",
    "LatentCodec",
    "SideCodec",
    "VectorCodec",
    "codec_of",
    "name_of",
]
