"""The section `quantization_config` of a config: which scheme the weights are stored by."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from types import MappingProxyType

from pagoda.models.config import ModelConfig
from pagoda.models.schemes.awq import AWQ
from pagoda.models.schemes.bitsandbytes import BitsAndBytes
from pagoda.models.schemes.compressed_tensors import CompressedTensors
from pagoda.models.schemes.fp8 import FP8
from pagoda.models.schemes.gptq import GPTQ
from pagoda.models.schemes.mxfp4 import MXFP4
from pagoda.models.schemes.scheme import Scheme, require_one_of
from pagoda.models.weight_parts import DecoderParts

SECTION = "quantization_config"
_READERS: Mapping[str, Callable[[ModelConfig], Scheme]] = MappingProxyType(
    {
        "gptq": GPTQ.read,
        "awq": AWQ.read,
        "compressed-tensors": CompressedTensors.read,
        "fp8": FP8.read,
        "fbgemm_fp8": FP8.read,
        "bitsandbytes": BitsAndBytes.read,
        "mxfp4": MXFP4.read,
    }
)
"""By `quant_method`."""


def read_quantization(config: ModelConfig) -> Scheme | None:
    """The scheme; None where weights are plain.

    Raises `UnsupportedModelError` for one that is not covered, `ModelError` for a field that is
    missing or wrong.
    """
    section = config.section(SECTION)
    if section is None:
        return None
    method = section.string("quant_method")
    require_one_of(section, "quant_method", method, tuple(_READERS))
    return _READERS[method](section)


def presumed_types(scheme: Scheme, parts: DecoderParts, dtype: str) -> dict[str, str]:
    """The types of the matrices in layers, where there is a config alone; `dtype`: the model's."""
    routers = {part.name for router in parts.routers for part in router}

    @cache
    def presumed(columns: int) -> str:
        return scheme.presumed(columns, dtype).type(columns)

    return {
        part.name: presumed(part.shape[1])
        for layer in parts.layers
        for merged in layer
        for part in merged
        if len(part.shape) == 2
        and part.name not in routers
        and not any(name in part.name for name in scheme.ignored)
    }
