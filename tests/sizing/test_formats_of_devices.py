"""Formats that a kind of device does not store: what it stores instead, and what may be meant."""

from __future__ import annotations

import re

import pytest

from pagoda.errors import InvalidOptionError
from pagoda.sizing.cache_formats import CacheFormats
from pagoda.sizing.device_policy import CPUPolicy, DevicePolicy, GPUPolicy

CPU, GPU = CPUPolicy(), GPUPolicy("NVIDIA H100 80GB HBM3", 79 * 2**30, (9, 0))
OWN = "or KEYS/VALUES, a codec of one's own"


@pytest.mark.parametrize(
    ("policy", "asked", "told"),
    [
        (CPU, "fp7", "one of auto, float32, bfloat16, fp8, .* on a CPU, OWN; did you mean fp8?"),
        (CPU, "int8", "OWN; did you mean int8_per_token_head or int8_per_group?"),
        (CPU, "int5", "OWN; did you mean int4?"),
        (CPU, "", "OWN"),
        (CPU, "tenfold", "OWN"),
        (
            GPU,
            "int4",
            "calibrated for the model, which CPUs alone do; a GPU has int4_per_token_head",
        ),
        (GPU, "turboquant", "did you mean turboquant_k8v4 or .* or turboquant_3bit_nc?"),
    ],
)
def test_what_is_stored_instead(policy: DevicePolicy, asked: str, told: str) -> None:
    words = re.escape(told).replace(r"\.\*", ".*").replace("OWN", re.escape(OWN))
    with pytest.raises(InvalidOptionError, match=f"{words}$"):
        CacheFormats(asked).require_one_of(policy.cache_formats("bfloat16"), policy.kind)


def test_what_is_stored_is_taken() -> None:
    own = "levels5-float16-norm/e4m3"
    stored = {
        "auto": "bfloat16",
        "fp8": "fp8_e4m3",
        "fp8_e4m3": "fp8_e4m3",
        "int4": "int4",
        own: own,
    }
    for name, format_of_layers in stored.items():
        asked = CacheFormats(name)
        asked.require_one_of(CPU.cache_formats("bfloat16"), CPU.kind)
        assert asked.of_layers([False] * 2, "bfloat16") == (format_of_layers,) * 2
