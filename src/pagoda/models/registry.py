"""The architectures that are covered, one row each."""

from __future__ import annotations

from collections.abc import Callable

from pagoda.errors import UnsupportedModelError
from pagoda.models.config import ModelConfig
from pagoda.models.decoder import DecoderSpec
from pagoda.models.families.llama import llama
from pagoda.models.families.mistral import mistral
from pagoda.models.families.qwen2 import qwen2
from pagoda.models.families.qwen3 import qwen3
from pagoda.models.families.smollm3 import smollm3

Family = Callable[[ModelConfig, "int | None"], DecoderSpec]
"""Turns a config and the longest sequence to be run into a `DecoderSpec`."""

ARCHITECTURES: dict[str, Family] = {
    "LlamaForCausalLM": llama,
    "MistralForCausalLM": mistral,
    "Qwen2ForCausalLM": qwen2,
    "Qwen3ForCausalLM": qwen3,
    "SmolLM3ForCausalLM": smollm3,
}


def decoder_spec(config: ModelConfig, max_model_len: int | None = None) -> DecoderSpec:
    """The decoder a config describes.

    `max_model_len` is the longest sequence the engine will run (see `read_rope`). Raises
    `UnsupportedModelError` for an architecture or feature that is not covered, `ModelError` for a
    field that is missing or wrong.
    """
    names = config.values.get("architectures")
    if type(names) is not list or len(names) != 1:
        raise config.error("architectures", names, "must name one architecture")
    architecture = names[0]
    if architecture not in ARCHITECTURES:
        raise UnsupportedModelError(
            "architectures", architecture, f"covered are {', '.join(ARCHITECTURES)}"
        )
    if config.values.get("quantization_config") is not None:
        method = (config.section("quantization_config") or config).values.get("quant_method")
        raise UnsupportedModelError(
            "quantization_config", method, "quantised weights are covered in GGUF files only"
        )
    return ARCHITECTURES[architecture](config, max_model_len)
