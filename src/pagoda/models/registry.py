"""The architectures that are covered, one row each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from pagoda.errors import UnsupportedModelError
from pagoda.models.config import ModelConfig
from pagoda.models.decoder import DecoderSpec
from pagoda.models.families.cohere2 import cohere2
from pagoda.models.families.deepseek import deepseek_v2, deepseek_v3
from pagoda.models.families.exaone4 import exaone4
from pagoda.models.families.gemma import gemma
from pagoda.models.families.gemma2 import gemma2
from pagoda.models.families.gemma3 import gemma3
from pagoda.models.families.glm4 import glm, glm4
from pagoda.models.families.granite import granite
from pagoda.models.families.llama import llama
from pagoda.models.families.minicpm3 import minicpm3
from pagoda.models.families.mistral import mistral
from pagoda.models.families.olmo2 import olmo2
from pagoda.models.families.olmo3 import olmo3
from pagoda.models.families.phi3 import phi3
from pagoda.models.families.qwen2 import qwen2
from pagoda.models.families.qwen3 import qwen3
from pagoda.models.families.smollm3 import smollm3
from pagoda.models.names import GGUF_NAMES, HUGGING_FACE_NAMES, WeightNames
from pagoda.models.near import near_names
from pagoda.models.quantization import read_quantization


@dataclass(frozen=True, slots=True)
class Family:
    """One architecture that is covered."""

    model_type: str
    """What its configs call themselves."""
    read: Callable[[ModelConfig, int | None], DecoderSpec]
    """Turns a config and the longest sequence to be run, in tokens, into the decoder."""
    names: WeightNames = HUGGING_FACE_NAMES
    """What weights are called in safetensors."""
    gguf_names: WeightNames = GGUF_NAMES


_NEIGHBOURS = replace(GGUF_NAMES, rotates_neighbours=True)
_POST_NORMS = replace(
    HUGGING_FACE_NAMES,
    attention_output_norm="post_attention_layernorm",
    mlp_norm="pre_feedforward_layernorm",
    mlp_output_norm="post_feedforward_layernorm",
)
_GEMMA = replace(GGUF_NAMES, norm_offset=1.0)
_ONE_QKV = replace(HUGGING_FACE_NAMES, qkv="self_attn.qkv_proj", gate_up="mlp.gate_up_proj")
_GLM = replace(HUGGING_FACE_NAMES, gate_up="mlp.gate_up_proj", rotates_neighbours=True)
_HF_NEIGHBOURS = replace(HUGGING_FACE_NAMES, rotates_neighbours=True)
_GGUF_ONE_GATE_UP = replace(GGUF_NAMES, gate_up="ffn_up")

ARCHITECTURES: dict[str, Family] = {
    "Cohere2ForCausalLM": Family(
        "cohere2",
        cohere2,
        _HF_NEIGHBOURS,
        replace(GGUF_NAMES, rotates_neighbours=True),
    ),
    "DeepseekV2ForCausalLM": Family("deepseek_v2", deepseek_v2, _HF_NEIGHBOURS),
    "DeepseekV3ForCausalLM": Family("deepseek_v3", deepseek_v3, _HF_NEIGHBOURS),
    "Exaone4ForCausalLM": Family("exaone4", exaone4, _POST_NORMS),
    "GemmaForCausalLM": Family("gemma", gemma, gguf_names=_GEMMA),
    "Gemma2ForCausalLM": Family("gemma2", gemma2, _POST_NORMS, _GEMMA),
    "Gemma3ForCausalLM": Family("gemma3_text", gemma3, _POST_NORMS, _GEMMA),
    "GlmForCausalLM": Family("glm", glm, _GLM),
    "Glm4ForCausalLM": Family(
        "glm4",
        glm4,
        replace(
            _GLM,
            attention_output_norm="post_self_attn_layernorm",
            mlp_output_norm="post_mlp_layernorm",
        ),
        replace(_GGUF_ONE_GATE_UP, rotates_neighbours=True),
    ),
    "GraniteForCausalLM": Family("granite", granite, gguf_names=_NEIGHBOURS),
    "LlamaForCausalLM": Family("llama", llama, gguf_names=_NEIGHBOURS),
    "MiniCPM3ForCausalLM": Family("minicpm3", minicpm3),
    "MistralForCausalLM": Family("mistral", mistral, gguf_names=_NEIGHBOURS),
    "Olmo2ForCausalLM": Family("olmo2", olmo2, _POST_NORMS),
    "Olmo3ForCausalLM": Family("olmo3", olmo3, _POST_NORMS),
    "Phi3ForCausalLM": Family("phi3", phi3, _ONE_QKV, replace(_GGUF_ONE_GATE_UP, qkv="attn_qkv")),
    "Qwen2ForCausalLM": Family("qwen2", qwen2),
    "Qwen3ForCausalLM": Family("qwen3", qwen3),
    "SmolLM3ForCausalLM": Family("smollm3", smollm3, gguf_names=_NEIGHBOURS),
}


def weight_names(architecture: str, kind: str) -> WeightNames:
    """What an architecture's weights are called in a kind of files: directory or gguf."""
    family = ARCHITECTURES[architecture]
    return family.gguf_names if kind == "gguf" else family.names


def decoder_spec(config: ModelConfig, max_model_len: int | None = None) -> DecoderSpec:
    """The decoder a config describes.

    `max_model_len` is the longest sequence the engine will run (see `read_rope`). Raises
    `UnsupportedModelError` for an architecture, a feature or a scheme of weights that is not
    covered, `ModelError` for a field that is missing or wrong.
    """
    family = find_family(config)
    read_quantization(config)
    return family.read(config, max_model_len)


def find_family(config: ModelConfig) -> Family:
    """The family of the architecture that a config names.

    Raises `UnsupportedModelError` where it is not covered, `ModelError` where there is not one.
    """
    names = config.values.get("architectures")
    if type(names) is not list or len(names) != 1:
        raise config.error("architectures", names, "must name one architecture")
    architecture = names[0]
    if type(architecture) is not str or architecture not in ARCHITECTURES:
        near = near_names(architecture, ARCHITECTURES)
        limit = f"covered are {', '.join(ARCHITECTURES)}, as safetensors and as GGUF files{near}"
        raise UnsupportedModelError("architectures", architecture, limit)
    return ARCHITECTURES[architecture]


def family_of(model_type: str) -> Family | None:
    """The family whose configs call themselves `model_type`; None where it is not covered."""
    families = (family for family in ARCHITECTURES.values() if family.model_type == model_type)
    return next(families, None)
